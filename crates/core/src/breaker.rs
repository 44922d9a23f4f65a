//! The circuit breaker of one endpoint: closed, open, half-open with one leased probe.
//!
//! The breaker only knows good, bad and neutral answers; what to count as which is decided in
//! `weigh`, what else an answer means for the endpoint in `lane`.
//!
//! **Invariant:** while a probe is out, no other goes, until it is heard of or its lease ran out.
//! Whoever sends a probe calls `probe` first, in the transaction that hands the delivery out.

use crate::outcome::{FailureKind, OutcomeClass};
use crate::time::{Timestamp, within};
use std::time::Duration;

/// What a breaker lets through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Position {
    #[default]
    Closed,
    /// Nothing is sent until then.
    Open { until: Timestamp },
    /// One probe is out; if nothing is heard of it by then, another may go.
    HalfOpen { probe_until: Timestamp },
}

/// One endpoint's breaker, as it is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breaker {
    pub position: Position,
    pub consecutive_failures: u32,
    /// The cooldown in force or last in force, without its jitter; zero when the breaker closed
    /// since.
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

/// What an answer says about the endpoint, as opposed to the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    Good,
    Bad,
    /// Says nothing about the endpoint's health: it neither adds to a streak nor ends it.
    Neutral,
}

/// Whether anything may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    Closed,
    Probe,
    Wait { until: Timestamp },
}

/// How an answer moved the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    None,
    Opened { until: Timestamp },
    Reopened { until: Timestamp },
    Closed,
}

/// How an outcome counts for the breaker.
///
/// 401, 403 and 404 count although they blame the request: they are what a receiver answers to
/// everything when its deploy or its credentials are broken. 429 does not: a receiver that says
/// "not so fast" is well. Other 4xx blame the one message.
pub fn weigh(class: OutcomeClass) -> Weight {
    match class {
        OutcomeClass::Success => Weight::Good,
        OutcomeClass::Status(401 | 403 | 404 | 408 | 410 | 425) => Weight::Bad,
        OutcomeClass::Status(400..500) => Weight::Neutral,
        OutcomeClass::Status(_) => Weight::Bad,
        OutcomeClass::Failure(FailureKind::Local) => Weight::Neutral,
        OutcomeClass::Failure(
            FailureKind::Dns
            | FailureKind::Connect
            | FailureKind::Tls
            | FailureKind::Timeout
            | FailureKind::Closed
            | FailureKind::Protocol
            | FailureKind::Blocked,
        ) => Weight::Bad,
    }
}

impl Default for BreakerPolicy {
    /// The preset `quick`.
    fn default() -> Self {
        Self {
            failure_threshold: 10,
            cooldown: Duration::from_secs(5),
            cooldown_max: Duration::from_secs(3_600),
        }
    }
}

impl BreakerPolicy {
    pub const PRESETS: [&str; 2] = ["quick", "patient"];

    /// `quick`, the default, notices a recovery within about the time that the outage lasted;
    /// `patient` is for receivers that must be left alone. `None`: no such preset.
    pub fn preset(name: &str) -> Option<Self> {
        match name {
            "quick" => Some(Self::default()),
            "patient" => Some(Self { cooldown: Duration::from_secs(300), ..Self::default() }),
            _ => None,
        }
    }

    fn first_cooldown(&self) -> Duration {
        self.cooldown.min(self.cooldown_max)
    }
}

impl Breaker {
    pub fn gate(&self, now: Timestamp) -> Gate {
        match self.position {
            Position::Closed => Gate::Closed,
            Position::Open { until } | Position::HalfOpen { probe_until: until } if now < until => {
                Gate::Wait { until }
            }
            Position::Open { .. } | Position::HalfOpen { .. } => Gate::Probe,
        }
    }

    /// Notes that the one probe went out under a lease until `probe_until`.
    pub fn probe(&mut self, probe_until: Timestamp) {
        self.position = Position::HalfOpen { probe_until };
    }

    /// Any success closes it, also one of an attempt that was in flight before it opened: the
    /// endpoint is evidently well.
    pub fn succeed(&mut self) -> Change {
        let change = match self.position {
            Position::Closed => Change::None,
            Position::Open { .. } | Position::HalfOpen { .. } => Change::Closed,
        };
        *self = Self::default();
        change
    }

    /// A failure at `at`; `threshold` is how many in a row open it.
    pub fn fail(
        &mut self,
        policy: &BreakerPolicy,
        threshold: u32,
        probe: bool,
        at: Timestamp,
        roll: u64,
    ) -> Change {
        match self.position {
            Position::Closed => {
                self.consecutive_failures = self.consecutive_failures.saturating_add(1);
                if self.consecutive_failures < threshold.max(1) {
                    return Change::None;
                }
                self.cooldown = policy.first_cooldown();
                Change::Opened { until: self.open(at.after(self.cooldown)) }
            }
            Position::HalfOpen { .. } if probe => {
                self.consecutive_failures = self.consecutive_failures.saturating_add(1);
                self.cooldown = match self.cooldown.saturating_mul(2).min(policy.cooldown_max) {
                    Duration::ZERO => policy.first_cooldown(),
                    doubled => doubled,
                };
                // Up to a fifth less, so that endpoints that fell together are not probed
                // together for ever.
                let shorter = within(self.cooldown / 5, roll);
                Change::Reopened { until: self.open(at.after(self.cooldown - shorter)) }
            }
            // The late result of an attempt from before it opened tells nothing new.
            Position::Open { .. } | Position::HalfOpen { .. } => Change::None,
        }
    }

    /// The probe came back and said nothing about the endpoint's health: its slot is free again,
    /// and the next may go after `wait`. A streak of failures neither grew nor ended.
    pub fn release_probe(&mut self, at: Timestamp, wait: Duration) {
        if matches!(self.position, Position::HalfOpen { .. }) {
            self.open(at.after(wait));
        }
    }

    fn open(&mut self, until: Timestamp) -> Timestamp {
        self.position = Position::Open { until };
        until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f060_what_counts_against_an_endpoint() {
        for status in [300, 308, 401, 403, 404, 408, 410, 425, 500, 503, 599, 101, 600] {
            assert_eq!(weigh(OutcomeClass::Status(status)), Weight::Bad, "{status}");
        }
        for status in [400, 402, 405, 409, 413, 421, 422, 429, 451, 499] {
            assert_eq!(weigh(OutcomeClass::Status(status)), Weight::Neutral, "{status}");
        }
        assert_eq!(weigh(OutcomeClass::Failure(FailureKind::Local)), Weight::Neutral);
        assert_eq!(weigh(OutcomeClass::Failure(FailureKind::Blocked)), Weight::Bad);
        assert_eq!(weigh(OutcomeClass::Success), Weight::Good);
    }

    #[test]
    fn presets_differ_in_patience_only() {
        let cooldown = |name| BreakerPolicy::preset(name).map(|policy| policy.cooldown.as_secs());
        assert_eq!(cooldown("quick"), Some(5));
        assert_eq!(cooldown("patient"), Some(300));
        assert_eq!(cooldown("never"), None);
        assert_eq!(BreakerPolicy::preset("quick"), Some(BreakerPolicy::default()));
    }
}
