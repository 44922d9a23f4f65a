//! Rate limits: the generic cell rate algorithm over a state of one timestamp.
//!
//! The state is the time until which the tokens given out so far would last at the steady rate
//! (the "theoretical arrival time" of ITU-T I.371). It may run ahead of now by as much as the
//! burst lasts. One number in the store is enough for any number of processes.
//!
//! **Invariant:** in any window of length `w`, at most `burst + w * count / period` tokens are
//! given out, and one more for rounding.

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

const PERIOD_MS_MAX: u32 = 86_400_000;
const BURST_MAX: u32 = 100_000;
const MICROS_PER_MILLI: u64 = 1_000;

/// `count` per period, with `burst` at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", try_from = "Unchecked")]
pub struct RateLimit {
    pub count: u32,
    pub period_ms: u32,
    pub burst: u32,
}

/// Which bound a rate limit breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateLimitError {
    #[error("`periodMs` must be between 1 and {PERIOD_MS_MAX} (a day)")]
    Period,
    #[error("`count` must be at least 1, and at most 1000 per millisecond")]
    Count,
    #[error("`burst` must be between 1 and {BURST_MAX}")]
    Burst,
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
    /// `rate` a second, evenly spaced but for a twentieth of a second's worth of burst. A rate of
    /// zero is taken for one.
    pub fn per_second(rate: u16) -> Self {
        let count = u32::from(rate.max(1));
        Self { count, period_ms: 1_000, burst: default_burst(count) }
    }

    /// Refuses a limit that breaks a bound.
    pub fn checked(self) -> Result<Self, RateLimitError> {
        if !(1..=PERIOD_MS_MAX).contains(&self.period_ms) {
            return Err(RateLimitError::Period);
        }
        if self.count == 0 || u64::from(self.count) > u64::from(self.period_ms) * MICROS_PER_MILLI {
            return Err(RateLimitError::Count);
        }
        if !(1..=BURST_MAX).contains(&self.burst) {
            return Err(RateLimitError::Burst);
        }
        Ok(self)
    }

    fn period_micros(self) -> u128 {
        u128::from(u64::from(self.period_ms.max(1)) * MICROS_PER_MILLI)
    }

    /// How long `tokens` last at the steady rate, rounded up so that the rate is never exceeded.
    fn span(self, tokens: u32) -> Duration {
        let micros = (u128::from(tokens) * self.period_micros()).div_ceil(self.count.max(1).into());
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// How many tokens are whole within `room`.
    fn tokens(self, room: Duration) -> u32 {
        let tokens = room.as_micros().saturating_mul(self.count.max(1).into());
        u32::try_from(tokens / self.period_micros()).unwrap_or(u32::MAX)
    }
}

impl LimiterState {
    /// Takes up to `want` tokens.
    pub fn take(&mut self, limit: RateLimit, want: u32, now: Timestamp) -> Granted {
        let burst = limit.span(limit.burst.max(1));
        // A state far ahead of now was left by a slower limit or by a clock that was set back;
        // it must not lock the lane up for as long as that.
        let ahead = burst.max(Duration::from_millis(limit.period_ms.into()));
        let mut next_at = self.next_at.clamp(now, now.after(ahead));
        let room = burst.saturating_sub(next_at.since(now));
        let count = want.min(limit.tokens(room));
        if count > 0 {
            next_at = next_at.after(limit.span(count));
            self.next_at = next_at;
        }
        let retry_at = next_at.after(limit.span(1)).before(burst).max(now);
        Granted { count, retry_at }
    }

    /// Puts back tokens that were taken but not used.
    pub fn put_back(&mut self, limit: RateLimit, count: u32) {
        // Rounded down, where taking rounds up: giving back must not make tokens.
        let micros = u128::from(count) * limit.period_micros() / u128::from(limit.count.max(1));
        let span = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        self.next_at = self.next_at.before(span);
    }
}

fn default_burst(count: u32) -> u32 {
    (count / 20).clamp(1, BURST_MAX)
}

fn default_period_ms() -> u32 {
    1_000
}

/// The wire form, before its bounds are checked.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Unchecked {
    count: u32,
    #[serde(default = "default_period_ms")]
    period_ms: u32,
    burst: Option<u32>,
}

impl TryFrom<Unchecked> for RateLimit {
    type Error = RateLimitError;

    fn try_from(raw: Unchecked) -> Result<Self, RateLimitError> {
        let burst = raw.burst.unwrap_or_else(|| default_burst(raw.count));
        Self { count: raw.count, period_ms: raw.period_ms, burst }.checked()
    }
}

#[cfg(test)]
mod tests;
