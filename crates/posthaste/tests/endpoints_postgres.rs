//! The cases of `endpoints.rs` on PostgreSQL: `common/database.rs` goes by this file's name.

#[path = "endpoints.rs"]
mod cases;
