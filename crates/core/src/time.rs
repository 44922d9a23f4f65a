//! Points in time, and the seam through which time and dice come in from outside.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A point in time in whole microseconds since the Unix epoch, UTC.
///
/// Microseconds are what both back-ends store, so a value read back equals the value written.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    pub const MIN: Self = Self(i64::MIN);
    pub const MAX: Self = Self(i64::MAX);

    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1_000_000))
    }

    pub const fn as_micros(self) -> i64 {
        self.0
    }

    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(1_000)
    }

    pub const fn as_secs(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }

    /// How long after `earlier` this is; zero when it is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Saturates at the end of time.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(delay.as_micros()).unwrap_or(i64::MAX)))
    }

    /// Saturates at the beginning of time.
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)))
    }
}

/// Where wall-clock time comes from. The binary has the only real one.
pub trait Clock: Send + Sync {
    fn now(&self) -> Timestamp;
}

/// Where randomness comes from. The binary has the only real one.
pub trait Dice: Send + Sync {
    /// A uniform roll. Jitter, ids and secrets are made of rolls, so a real implementation is
    /// cryptographically strong.
    fn roll(&self) -> u64;

    /// Fills `bytes` with rolls.
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let roll = self.roll().to_le_bytes();
            chunk.copy_from_slice(&roll[..chunk.len()]);
        }
    }
}

/// Maps a roll to `[0, span]`, uniformly up to one microsecond.
pub fn within(span: Duration, roll: u64) -> Duration {
    let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    let scaled = (u128::from(roll) * (u128::from(micros) + 1)) >> 64;
    Duration::from_micros(u64::try_from(scaled).unwrap_or(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn within_reaches_both_ends_and_no_further() {
        let span = Duration::from_secs(30);
        assert_eq!(within(span, 0), Duration::ZERO);
        assert_eq!(within(span, u64::MAX), span);
        assert_eq!(within(Duration::ZERO, u64::MAX), Duration::ZERO);
        assert_eq!(within(Duration::MAX, u64::MAX), Duration::from_micros(u64::MAX));
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Timestamp::MAX.after(Duration::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::MIN.before(Duration::from_secs(1)), Timestamp::MIN);
        assert_eq!(Timestamp::from_secs(1).since(Timestamp::from_secs(2)), Duration::ZERO);
    }
}
