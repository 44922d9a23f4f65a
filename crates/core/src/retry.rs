//! When a failed delivery is tried again, and when it is given up.

use crate::delivery::{Cause, Verdict};
use crate::outcome::Outcome;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A retry policy is data: global, per application or per endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", rename_all_fields = "camelCase")]
pub enum RetryPolicy {
    /// The delay before attempt `n + 1` is uniform in `[0, min(cap, base * factor^(n - 1))]`.
    FullJitter { base_ms: u64, factor: f64, cap_ms: u64, attempts_max: u32 },
    /// Fixed delays, each moved by up to `jitter` of itself either way; one attempt more than
    /// there are delays.
    Schedule { delays_ms: Vec<u64>, jitter: f64 },
}

/// What of a policy and its surroundings the judge needs.
#[derive(Clone, Copy, Debug)]
pub struct Judged<'a> {
    pub policy: &'a RetryPolicy,
    /// Statuses that end a delivery at once, beside 410.
    pub final_statuses: &'a [u16],
    /// Attempts that count against the policy, with this one.
    pub plan_attempt: u32,
    /// A manual attempt has no retries of its own ...
    pub manual: bool,
    /// ... but leaves the plan it came before as it was.
    pub planned_at: Option<Timestamp>,
}

impl RetryPolicy {
    pub fn preset(_name: &str) -> Option<Self> {
        unimplemented!()
    }
}

pub fn judge(_outcome: &Outcome, _by: Judged<'_>, _now: Timestamp, _roll: u64) -> Verdict {
    unimplemented!()
}
