//! The cases of `retries.rs` on PostgreSQL: `common/database.rs` goes by this file's name.

#[path = "retries.rs"]
mod cases;
