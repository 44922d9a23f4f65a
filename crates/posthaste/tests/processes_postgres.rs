//! The cases of `processes.rs` on PostgreSQL: `common/database.rs` goes by this file's name.

#[path = "processes.rs"]
mod cases;
