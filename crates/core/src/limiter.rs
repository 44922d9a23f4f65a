//! Rate limits: GCRA over a state of one timestamp.

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// `count` per period, with `burst` at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RateLimit {
    pub count: u32,
    pub period_ms: u32,
    pub burst: u32,
}

/// What a limiter remembers: the theoretical arrival time of the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimiterState {
    pub next_at: Timestamp,
}

/// How many of those asked for may go now, and when the next may, if not all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    pub count: u32,
    pub retry_at: Timestamp,
}

impl RateLimit {
    /// `rate` a second, evenly spaced but for a twentieth of a second's worth of burst.
    pub fn per_second(_rate: u16) -> Self {
        unimplemented!()
    }
}

impl LimiterState {
    /// Takes up to `want` tokens.
    pub fn take(&mut self, _limit: RateLimit, _want: u32, _now: Timestamp) -> Granted {
        unimplemented!()
    }

    /// Puts back tokens that were taken but not used.
    pub fn put_back(&mut self, _limit: RateLimit, _count: u32) {
        unimplemented!()
    }
}
