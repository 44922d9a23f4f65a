//! The cases of `chaos.rs` on PostgreSQL: `common/database.rs` goes by this file's name.

#[path = "chaos.rs"]
mod cases;
