//! The cases of `delivery.rs` on PostgreSQL: `common/database.rs` goes by this file's name.

#[path = "delivery.rs"]
mod cases;
