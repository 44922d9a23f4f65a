//! The circuit breaker of one endpoint: closed, open, half-open with one leased probe.

use crate::time::Timestamp;
use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Position {
    #[default]
    Closed,
    /// Nothing is sent until then.
    Open { until: Timestamp },
    /// One probe is out; if nothing is heard of it by then, another may go.
    HalfOpen { probe_until: Timestamp },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breaker {
    pub position: Position,
    pub consecutive_failures: u32,
    /// The cooldown in force or last in force; zero when the breaker closed since.
    pub cooldown: Duration,
}

/// The settings of all breakers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// Consecutive failures that open it.
    pub failure_threshold: u32,
    /// The first cooldown; doubled, with jitter, at each failed probe.
    pub cooldown: Duration,
    pub cooldown_max: Duration,
}
