//! The cases of `intake.rs` on PostgreSQL: `common/database.rs` goes by this file's name.

#[path = "intake.rs"]
mod cases;
