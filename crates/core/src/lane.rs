//! One endpoint's live state: breaker, pause, recovery ramp, failure clock, rate limit.
//!
//! The state is data and lives in the store; `admit` and `settle` are the only places that decide
//! about it, so that several processes come to the same decisions from the same row.

use crate::breaker::{Breaker, BreakerPolicy};
use crate::limiter::LimiterState;
use crate::outcome::OutcomeClass;
use crate::time::Timestamp;
use std::time::Duration;

/// What is known of an endpoint's health. One row in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    pub breaker: Breaker,
    /// The receiver asked for quiet (429 or 503 with `Retry-After`): nothing goes before.
    pub quiet_until: Option<Timestamp>,
    /// While an endpoint recovers: how many deliveries may be in flight to it. `None`: no ramp.
    pub ramp: Option<u32>,
    /// Start of the unbroken streak of failures, for the disabling clock.
    pub failing_since: Option<Timestamp>,
    pub last_failure_at: Option<Timestamp>,
    pub last_success_at: Option<Timestamp>,
    /// The last warning given on the way to disabling: 0, 50, 75 or 90.
    pub warned_percent: u8,
    pub limiter: LimiterState,
    /// P95 over the last 24 h in milliseconds, as last measured; 0: unknown.
    pub p95_ms: u32,
}

/// The settings of all lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneRules {
    pub breaker: BreakerPolicy,
    /// Unbroken failure for so long disables the endpoint; `None`: never.
    pub disable_after: Option<Duration>,
    /// Deliveries in flight to one endpoint.
    pub in_flight_max: u32,
}

/// What may be handed out of a lane now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Up to `in_flight_max` deliveries may be in flight. `drain`: deliveries that wait for their
    /// retry time are pulled forward.
    Go { in_flight_max: u32, drain: bool },
    /// One attempt may go as the probe.
    Probe,
    Wait { until: Timestamp },
}

/// What an attempt showed.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    pub at: Timestamp,
    pub class: OutcomeClass,
    /// A wait that the receiver asked for, already bounded.
    pub retry_after: Option<Duration>,
    pub latency: Duration,
    pub probe: bool,
}

/// What changed so that someone should hear of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Opened { until: Timestamp },
    /// A probe failed.
    Reopened { until: Timestamp },
    Closed,
    /// The endpoint has failed for so many percent of the time after which it is disabled.
    Failing { percent: u8, since: Timestamp },
    /// Failed without a break for too long: disable it.
    Exhausted { since: Timestamp },
    /// Answered 410: disable it.
    Gone,
}

impl Health {
    pub fn admit(&self, _rules: &LaneRules, _now: Timestamp) -> Admission {
        unimplemented!()
    }

    /// Notes that the one probe went out under a lease until `probe_until`.
    pub fn probe(&mut self, _probe_until: Timestamp) {
        unimplemented!()
    }

    /// Folds one observation in. At most two events (for example closed and ...).
    pub fn settle(&mut self, _rules: &LaneRules, _seen: &Observation, _roll: u64) -> Vec<Event> {
        unimplemented!()
    }
}
