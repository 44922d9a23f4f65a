//! Time and dice that stand still until the test moves them.

use posthaste_core::time::{Clock, Dice, Timestamp};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// A clock that only the test moves.
#[derive(Debug)]
pub struct TestClock(AtomicI64);

/// Rolls that are the same for the same seed (splitmix64, Steele et al. 2014).
#[derive(Debug)]
pub struct TestDice(AtomicU64);

impl TestClock {
    pub fn at(now: Timestamp) -> Self {
        Self(AtomicI64::new(now.as_micros()))
    }

    pub fn set(&self, now: Timestamp) {
        self.0.store(now.as_micros(), Ordering::SeqCst);
    }

    /// Moves time on and returns what it is then.
    pub fn advance(&self, by: Duration) -> Timestamp {
        let now = self.now().after(by);
        self.set(now);
        now
    }
}

impl Default for TestClock {
    /// Some second in 2026.
    fn default() -> Self {
        Self::at(Timestamp::from_secs(1_780_000_000))
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

impl TestDice {
    pub fn seeded(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }
}

impl Dice for TestDice {
    fn roll(&self) -> u64 {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut z = self.0.fetch_add(STEP, Ordering::SeqCst).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}
