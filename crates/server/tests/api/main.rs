//! The API over real sockets, with a real store behind it.

mod common;
mod errors;
mod listener;
mod lists;
mod operations;
mod publishing;
mod tokens;
