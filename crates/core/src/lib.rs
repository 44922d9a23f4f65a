//! Decides: the domain's types and every decision of posthaste.
//!
//! **Invariant:** nothing here does I/O, reads a clock, rolls dice, allocates without a bound that
//! `limits` names, or depends on hash order. `now` and `roll` are arguments, so that the whole
//! engine can be run again, byte for byte, from a seed.

pub mod breaker;
pub mod delivery;
pub mod endpoint;
pub mod event;
pub mod id;
pub mod lane;
pub mod latency;
pub mod limiter;
pub mod limits;
pub mod message;
pub mod outcome;
pub mod redact;
pub mod retry;
pub mod routing;
pub mod sign;
pub mod time;
pub mod verify;
