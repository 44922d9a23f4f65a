//! Receivers that misbehave on purpose, on real sockets, and time and dice that tests hold in hand.
//!
//! Everything listens on loopback only. Waiting is for events, with a bound that is only there to
//! turn a hang into a failure.
#![expect(clippy::expect_used, reason = "a broken test machine is a failed test")]

mod black_hole;
mod clock;
#[cfg(feature = "tls")]
mod http2;
mod receiver;
mod reply;
mod request;
#[cfg(feature = "tls")]
mod tls;

pub use black_hole::BlackHole;
pub use clock::{TestClock, TestDice};
#[cfg(feature = "tls")]
pub use http2::{Http2Receiver, Http2Request, Move};
pub use receiver::{Receiver, ReceiverBuilder};
pub use reply::{Reply, Step};
pub use request::ReceivedRequest;
#[cfg(feature = "tls")]
pub use tls::Identity;

use std::time::Duration;

/// How long a test waits for an event before it fails.
pub const PATIENCE: Duration = Duration::from_secs(30);
