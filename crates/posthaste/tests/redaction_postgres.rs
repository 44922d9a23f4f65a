//! The cases of `redaction.rs` on PostgreSQL: `common/database.rs` goes by this file's name.

#[path = "redaction.rs"]
mod cases;
