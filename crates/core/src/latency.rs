//! Latency sketches: mergeable, within 1 % of exact, in hourly windows.

use std::time::Duration;

/// A sketch of durations. Merging is associative and commutative.
#[derive(Clone, Debug, Default)]
pub struct Sketch;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Percentiles {
    pub count: u64,
    pub p50: Duration,
    pub p95: Duration,
    pub p99: Duration,
}

impl Sketch {
    pub fn add(&mut self, _sample: Duration) {
        unimplemented!()
    }
    pub fn merge(&mut self, _other: &Self) {
        unimplemented!()
    }
    pub fn count(&self) -> u64 {
        unimplemented!()
    }
    /// `None` without samples; `q` in `[0, 1]`.
    pub fn quantile(&self, _q: f64) -> Option<Duration> {
        unimplemented!()
    }
    /// `None` without samples.
    pub fn percentiles(&self) -> Option<Percentiles> {
        unimplemented!()
    }
    /// A compact, versioned form for the store.
    pub fn to_bytes(&self) -> Vec<u8> {
        unimplemented!()
    }
    /// `None` for bytes that are no sketch (another version, damage); never panics.
    pub fn from_bytes(_bytes: &[u8]) -> Option<Self> {
        unimplemented!()
    }
}
