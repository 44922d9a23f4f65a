//! When a failed delivery is tried again, and when it is given up.
//!
//! By default every failure is tried again, whatever its status: a bad deploy of a receiver
//! answers 400, 401 or 404 as readily as 500, and an event that is given up then is lost to its
//! owner. Only 410 ends a delivery at once, and the statuses that an endpoint's owner names.
//!
//! **Invariant:** no wait is longer than `limits::DELAY_MAX`, and no delivery is attempted more
//! than `limits::ATTEMPTS_MAX` times by plan, whatever a policy or a receiver says.

use crate::delivery::{Cause, Verdict};
use crate::limits::{ATTEMPTS_LOST_MAX, ATTEMPTS_MAX, DELAY_MAX};
use crate::outcome::{Outcome, OutcomeClass};
use crate::time::{Timestamp, within};
use serde::{Deserialize, Serialize};
use std::time::{Duration, UNIX_EPOCH};

const GONE: u16 = 410;
const FACTOR_MAX: f64 = 10.0;

/// A retry policy is data: global, per application or per endpoint.
///
/// One that was read (`Deserialize`) or came out of `checked` keeps its bounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
#[serde(rename_all = "snake_case", tag = "kind", rename_all_fields = "camelCase")]
pub enum RetryPolicy {
    /// The delay before attempt `n + 1` is uniform in `[0, min(cap, base * factor^(n - 1))]`,
    /// which is called full jitter.
    FullJitter { base_ms: u64, factor: f64, cap_ms: u64, attempts_max: u32 },
    /// Fixed delays, each moved by up to `jitter` of itself either way; one attempt more than
    /// there are delays. No delays: no retries.
    Schedule { delays_ms: Vec<u64>, jitter: f64 },
}

/// Which bound a retry policy breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RetryPolicyError {
    #[error("`{0}` must be at most {max} ms (24 h)", max = DELAY_MAX.as_millis())]
    Delay(&'static str),
    #[error("`{0}` must allow 1 to {ATTEMPTS_MAX} attempts")]
    Attempts(&'static str),
    #[error("`factor` must be between 1 and {FACTOR_MAX}")]
    Factor,
    #[error("`jitter` must be between 0 and 1")]
    Jitter,
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

/// What an attempt's outcome means for its delivery. `now` is when the attempt ended.
pub fn judge(outcome: &Outcome, by: Judged<'_>, now: Timestamp, roll: u64) -> Verdict {
    let class = outcome.class();
    match class {
        OutcomeClass::Success => return Verdict::Delivered,
        OutcomeClass::Status(GONE) => return Verdict::Dead(Cause::Gone),
        OutcomeClass::Status(status) if by.final_statuses.contains(&status) => {
            return Verdict::Dead(Cause::Final(class));
        }
        OutcomeClass::Status(_) | OutcomeClass::Failure(_) => {}
    }
    let exhausted = Verdict::Dead(Cause::Exhausted(class));
    if by.manual {
        return by.planned_at.map_or(exhausted, |planned| Verdict::RetryAt(planned.max(now)));
    }
    let asked = outcome.retry_after().and_then(|text| retry_after(text, now));
    by.policy.delay(by.plan_attempt, roll).map_or(exhausted, |delay| {
        Verdict::RetryAt(now.after(delay.max(asked.unwrap_or_default())))
    })
}

impl Default for RetryPolicy {
    /// The preset `day`.
    fn default() -> Self {
        Self::FullJitter { base_ms: 30_000, factor: 2.0, cap_ms: 12 * 3_600_000, attempts_max: 14 }
    }
}

impl RetryPolicy {
    pub const PRESETS: [&str; 3] = ["short", "email", "day"];

    /// `short` gives up within 8 minutes, `email` after about 15 hours, `day` (the default) within
    /// 41 hours and after about 20. `None`: no such preset.
    pub fn preset(name: &str) -> Option<Self> {
        match name {
            "short" => Some(Self::FullJitter {
                base_ms: 30_000,
                factor: 2.0,
                cap_ms: 3_600_000,
                attempts_max: 5,
            }),
            "email" => Some(Self::Schedule {
                delays_ms: vec![60_000, 300_000, 1_800_000, 7_200_000, 43_200_000],
                jitter: 0.2,
            }),
            "day" => Some(Self::default()),
            _ => None,
        }
    }

    /// Refuses a policy that breaks a bound.
    pub fn checked(self) -> Result<Self, RetryPolicyError> {
        let too_long = |ms: u64| u128::from(ms) > DELAY_MAX.as_millis();
        match &self {
            Self::FullJitter { base_ms, factor, cap_ms, attempts_max } => {
                if too_long(*base_ms) {
                    return Err(RetryPolicyError::Delay("baseMs"));
                }
                if too_long(*cap_ms) {
                    return Err(RetryPolicyError::Delay("capMs"));
                }
                if !(1.0..=FACTOR_MAX).contains(factor) {
                    return Err(RetryPolicyError::Factor);
                }
                if !(1..=ATTEMPTS_MAX).contains(attempts_max) {
                    return Err(RetryPolicyError::Attempts("attemptsMax"));
                }
            }
            Self::Schedule { delays_ms, jitter } => {
                if delays_ms.len() >= ATTEMPTS_MAX as usize {
                    return Err(RetryPolicyError::Attempts("delaysMs"));
                }
                if delays_ms.iter().copied().any(too_long) {
                    return Err(RetryPolicyError::Delay("delaysMs"));
                }
                if !(0.0..=1.0).contains(jitter) {
                    return Err(RetryPolicyError::Jitter);
                }
            }
        }
        Ok(self)
    }

    /// How many attempts the policy allows, the first one included.
    pub fn attempts_max(&self) -> u32 {
        let allowed = match self {
            Self::FullJitter { attempts_max, .. } => *attempts_max,
            Self::Schedule { delays_ms, .. } => {
                u32::try_from(delays_ms.len()).unwrap_or(u32::MAX).saturating_add(1)
            }
        };
        allowed.min(ATTEMPTS_MAX)
    }

    /// Whether attempt `plan_attempt` is so far beyond what the policy allows that it is not to be
    /// made: those before it were claimed, and nobody was left to record them.
    pub fn is_overdrawn(&self, plan_attempt: u32) -> bool {
        plan_attempt > self.attempts_max().saturating_add(ATTEMPTS_LOST_MAX)
    }

    /// The wait after attempt `plan_attempt`, counted from 1, failed; `None`: it was the last.
    pub fn delay(&self, plan_attempt: u32, roll: u64) -> Option<Duration> {
        if plan_attempt >= self.attempts_max() {
            return None;
        }
        let retries_before = plan_attempt.saturating_sub(1);
        let delay = match self {
            Self::FullJitter { base_ms, factor, cap_ms, .. } => {
                within(exponential(*base_ms, *factor, *cap_ms, retries_before), roll)
            }
            Self::Schedule { delays_ms, jitter } => {
                let delay = Duration::from_millis(*delays_ms.get(retries_before as usize)?);
                let delay = delay.min(DELAY_MAX);
                // The cast saturates, and takes what is not a number for zero.
                let spread = (delay.as_micros() as f64 * jitter.clamp(0.0, 1.0)) as u64;
                let spread = Duration::from_micros(spread);
                delay.saturating_sub(spread) + within(spread * 2, roll)
            }
        };
        Some(delay.min(DELAY_MAX))
    }
}

/// The wait that a `Retry-After` header asks for: whole or decimal seconds (rounded up) or an
/// HTTP date (RFC 9110 section 10.2.3), at most `limits::DELAY_MAX`. `None` for anything else: a
/// text that means nothing changes nothing.
pub fn retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    let text = text.trim_matches([' ', '\t']);
    let wait = match seconds(text) {
        Some(seconds) => Duration::from_secs(seconds),
        None => {
            let date = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
            Timestamp::from_micros(0).after(date).since(now)
        }
    };
    Some(wait.min(DELAY_MAX))
}

/// Digits, or digits with a fraction. More than a `u64` holds is as good as its maximum.
fn seconds(text: &str) -> Option<u64> {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let whole: u64 = whole.parse().unwrap_or(u64::MAX);
    Some(whole.saturating_add(u64::from(fraction.bytes().any(|digit| digit != b'0'))))
}

/// `min(cap, base * factor^power)`.
fn exponential(base_ms: u64, factor: f64, cap_ms: u64, power: u32) -> Duration {
    let power = i32::try_from(power.min(ATTEMPTS_MAX)).unwrap_or_default();
    let bound_ms = (base_ms as f64 * factor.powi(power)).min(cap_ms as f64);
    // The cast saturates, and takes what is not a number for zero.
    Duration::from_micros((bound_ms * 1_000.0) as u64).min(DELAY_MAX)
}

/// The wire form, before its bounds are checked.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", rename_all_fields = "camelCase")]
#[serde(deny_unknown_fields)]
enum Unchecked {
    FullJitter {
        base_ms: u64,
        factor: f64,
        cap_ms: u64,
        attempts_max: u32,
    },
    Schedule {
        delays_ms: Vec<u64>,
        #[serde(default)]
        jitter: f64,
    },
}

impl TryFrom<Unchecked> for RetryPolicy {
    type Error = RetryPolicyError;

    fn try_from(raw: Unchecked) -> Result<Self, RetryPolicyError> {
        match raw {
            Unchecked::FullJitter { base_ms, factor, cap_ms, attempts_max } => {
                Self::FullJitter { base_ms, factor, cap_ms, attempts_max }
            }
            Unchecked::Schedule { delays_ms, jitter } => Self::Schedule { delays_ms, jitter },
        }
        .checked()
    }
}

#[cfg(test)]
mod tests;
