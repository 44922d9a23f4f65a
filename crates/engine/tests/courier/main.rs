//! The courier and the guard against real sockets on loopback.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]

mod common;
mod guard;
mod http1;
mod tls;
