//! One endpoint's live state: breaker, pause, recovery ramp, failure clock, rate limit.
//!
//! The state is data and lives in the store; `admit` and `settle` are the only places that decide
//! about it, so that several processes come to the same decisions from the same row.

use crate::breaker::{self, Breaker, BreakerPolicy, Change, Gate, Position, Weight};
use crate::limiter::LimiterState;
use crate::limits::{DELAY_MAX, DISABLE_AFTER, ENDPOINT_IN_FLIGHT_MAX};
use crate::outcome::OutcomeClass;
use crate::time::Timestamp;
use std::time::Duration;

/// A ramp starts with so many deliveries in flight.
const RAMP_START: u32 = 4;
/// So many failures in a row make a streak, whose end starts a ramp. A failure now and then is
/// none: a single message that its receiver cannot digest would otherwise be pulled forward after
/// every success of another, and burn through its attempts within seconds.
const STREAK_MIN: u32 = 3;
/// A success that took longer than this does not widen a ramp.
const SLOW: Duration = Duration::from_secs(2);
/// Above this P95 an endpoint's breaker opens after half as many failures ...
const P95_MS_HALVES_THRESHOLD: u32 = 5_000;
/// ... but never after fewer.
const THRESHOLD_HALVED_MIN: u32 = 3;
/// Shares of the way to disabling, in percent, at which a warning is given, highest first.
const WARNINGS_PERCENT: [u8; 3] = [90, 75, 50];

/// What is known of an endpoint's health. One row in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    pub breaker: Breaker,
    /// The receiver asked for quiet (429 or 503 with `Retry-After`): nothing goes before.
    pub quiet_until: Option<Timestamp>,
    /// While an endpoint recovers: how many deliveries may be in flight to it. `None`: no ramp.
    /// Whoever finds that nothing waits any more sets it to `None`.
    pub ramp: Option<u32>,
    /// Start of the unbroken streak of failures, for the disabling clock.
    pub failing_since: Option<Timestamp>,
    pub last_failure_at: Option<Timestamp>,
    pub last_success_at: Option<Timestamp>,
    /// The last warning given on the way to disabling: 0, 50, 75 or 90.
    pub warned_percent: u8,
    pub limiter: LimiterState,
    /// P95 of the last hour or two in milliseconds, as a worker last measured it; 0: unknown.
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
    Go {
        in_flight_max: u32,
        drain: bool,
    },
    /// One attempt may go as the probe.
    Probe,
    Wait {
        until: Timestamp,
    },
}

/// What an attempt showed.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    pub at: Timestamp,
    pub class: OutcomeClass,
    /// A wait that the receiver asked for, already bounded.
    pub retry_after: Option<Duration>,
    pub latency: Duration,
    /// The attempt was handed out as a probe, and it is the one that is waited for: see
    /// `Health::awaits`.
    pub probe: bool,
}

/// What changed so that someone should hear of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Opened {
        until: Timestamp,
    },
    /// A probe failed.
    Reopened {
        until: Timestamp,
    },
    Closed,
    /// The endpoint has failed for so many percent of the time after which it is disabled.
    Failing {
        percent: u8,
        since: Timestamp,
    },
    /// Failed without a break for too long: disable it.
    Exhausted {
        since: Timestamp,
    },
    /// Answered 410: disable it.
    Gone,
}

impl Default for LaneRules {
    fn default() -> Self {
        Self {
            breaker: BreakerPolicy::default(),
            disable_after: Some(DISABLE_AFTER),
            in_flight_max: ENDPOINT_IN_FLIGHT_MAX,
        }
    }
}

impl Health {
    pub fn admit(&self, rules: &LaneRules, now: Timestamp) -> Admission {
        let gate = self.breaker.gate(now);
        let quiet = self.quiet_until.filter(|until| now < *until);
        match (gate, quiet) {
            (Gate::Wait { until }, Some(quiet)) => Admission::Wait { until: until.max(quiet) },
            (_, Some(until)) | (Gate::Wait { until }, None) => Admission::Wait { until },
            (Gate::Probe, None) => Admission::Probe,
            (Gate::Closed, None) => {
                let in_flight_max = self.ramp.unwrap_or(u32::MAX).min(rules.in_flight_max.max(1));
                Admission::Go { in_flight_max, drain: self.ramp.is_some() }
            }
        }
    }

    /// Notes that the one probe went out under a lease until `probe_until`.
    pub fn probe(&mut self, probe_until: Timestamp) {
        self.breaker.probe(probe_until);
    }

    /// Whether the probe under a lease until `lease_until` is the one that the breaker waits for.
    /// It may have closed and opened since that probe went out, and wait for another one now.
    pub fn awaits(&self, lease_until: Timestamp) -> bool {
        self.breaker.position == Position::HalfOpen { probe_until: lease_until }
    }

    /// Folds one observation in. At most two events: what became of the breaker, and what else.
    /// Without an event, the answer does not allocate.
    pub fn settle(&mut self, rules: &LaneRules, seen: &Observation, roll: u64) -> Vec<Event> {
        self.quieten(seen);
        match breaker::weigh(seen.class) {
            Weight::Good => self.succeed(rules, seen),
            Weight::Bad => self.fail(rules, seen, roll),
            Weight::Neutral => {
                if seen.probe {
                    self.breaker.release_probe(seen.at, self.wait_after_neutral(rules, seen));
                }
                Vec::new()
            }
        }
    }

    /// A receiver that names a time when it says 429 or 503 means all that we have for it.
    fn quieten(&mut self, seen: &Observation) {
        self.quiet_until = self.quiet_until.filter(|until| seen.at < *until);
        if let (OutcomeClass::Status(429 | 503), Some(wait)) = (seen.class, seen.retry_after) {
            let until = seen.at.after(wait.min(DELAY_MAX));
            self.quiet_until = self.quiet_until.max((until > seen.at).then_some(until));
        }
    }

    fn succeed(&mut self, rules: &LaneRules, seen: &Observation) -> Vec<Event> {
        let streak = self.breaker.consecutive_failures;
        let closed = self.breaker.succeed() == Change::Closed;
        self.last_success_at = self.last_success_at.max(Some(seen.at));
        self.failing_since = None;
        self.warned_percent = 0;
        let in_flight_max = rules.in_flight_max.max(1);
        self.ramp = match self.ramp {
            _ if closed => Some(RAMP_START.min(in_flight_max)),
            None if streak >= STREAK_MIN => Some(RAMP_START.min(in_flight_max)),
            Some(width) if seen.latency <= SLOW => Some(width.saturating_mul(2).min(in_flight_max)),
            as_it_is => as_it_is,
        };
        if closed { vec![Event::Closed] } else { Vec::new() }
    }

    fn fail(&mut self, rules: &LaneRules, seen: &Observation, roll: u64) -> Vec<Event> {
        let threshold = self.threshold(&rules.breaker);
        // The clock looks at the time since the last failure and at the cooldown that was in force
        // meanwhile, so it comes before both change.
        let clock = match seen.class {
            OutcomeClass::Status(410) => Some(Event::Gone),
            _ => self.advance_clock(rules, seen.at),
        };
        self.last_failure_at = self.last_failure_at.max(Some(seen.at));
        let moved = match self.breaker.fail(&rules.breaker, threshold, seen.probe, seen.at, roll) {
            Change::Opened { until } => Some(Event::Opened { until }),
            Change::Reopened { until } => Some(Event::Reopened { until }),
            Change::None | Change::Closed => None,
        };
        self.ramp = match self.breaker.position {
            Position::Closed => self.ramp.map(|width| (width / 2).max(1)),
            Position::Open { .. } | Position::HalfOpen { .. } => None,
        };
        moved.into_iter().chain(clock).collect()
    }

    fn threshold(&self, policy: &BreakerPolicy) -> u32 {
        let threshold = policy.failure_threshold.max(1);
        if self.p95_ms > P95_MS_HALVES_THRESHOLD {
            (threshold / 2).max(THRESHOLD_HALVED_MIN).min(threshold)
        } else {
            threshold
        }
    }

    /// How long to leave an endpoint alone whose probe said nothing about its health.
    fn wait_after_neutral(&self, rules: &LaneRules, seen: &Observation) -> Duration {
        let shortest = rules.breaker.cooldown.min(rules.breaker.cooldown_max);
        if seen.class == OutcomeClass::Status(429) {
            let asked = seen.retry_after.filter(|wait| !wait.is_zero());
            return asked.unwrap_or(self.breaker.cooldown.max(shortest)).min(DELAY_MAX);
        }
        // The endpoint answered, or the trouble was ours: the next delivery may tell more, and it
        // should not have to wait as long as for an endpoint that is down.
        shortest
    }

    /// The disabling clock. It runs only while failures follow each other closely: two single
    /// failures with days of silence between them are no outage of days. A silence that our own
    /// breaker imposed does not count.
    fn advance_clock(&mut self, rules: &LaneRules, at: Timestamp) -> Option<Event> {
        let after = rules.disable_after?;
        let gap_max = (after / 4).saturating_add(self.breaker.cooldown);
        let silent = self.last_failure_at.is_none_or(|last| at.since(last) > gap_max);
        let since = match self.failing_since {
            Some(since) if !silent => since,
            _ => {
                self.warned_percent = 0;
                *self.failing_since.insert(at)
            }
        };
        let failing_for = at.since(since);
        if failing_for >= after {
            // The clock starts anew, for when the endpoint is enabled again.
            self.failing_since = None;
            self.warned_percent = 0;
            return Some(Event::Exhausted { since });
        }
        let reached = |percent: &u8| {
            failing_for.as_micros() * 100 >= after.as_micros() * u128::from(*percent)
        };
        let percent = WARNINGS_PERCENT.into_iter().find(reached)?;
        if percent <= self.warned_percent {
            return None;
        }
        self.warned_percent = percent;
        Some(Event::Failing { percent, since })
    }
}

#[cfg(test)]
mod tests;
