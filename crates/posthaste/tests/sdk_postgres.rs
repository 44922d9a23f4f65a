//! The cases of `sdk.rs` on PostgreSQL: `common/database.rs` goes by this file's name.

#[path = "sdk.rs"]
mod cases;
