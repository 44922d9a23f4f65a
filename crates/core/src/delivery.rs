//! One message for one endpoint: its state, its lease, and what became of it.

use crate::id::{ApplicationId, AttemptId, EndpointId, MessageId, WorkerId};
use crate::outcome::{Outcome, OutcomeClass};
use crate::time::Timestamp;
use std::fmt;

/// The states of a delivery as people see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeliveryState {
    /// No attempt yet.
    Pending,
    InFlight,
    AwaitingRetry,
    Delivered,
    DeadLetter,
    /// Waits for a human.
    Held,
    Cancelled,
}

impl DeliveryState {
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::InFlight,
        Self::AwaitingRetry,
        Self::Delivered,
        Self::DeadLetter,
        Self::Held,
        Self::Cancelled,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InFlight => "in_flight",
            Self::AwaitingRetry => "awaiting_retry",
            Self::Delivered => "delivered",
            Self::DeadLetter => "dead_letter",
            Self::Held => "held",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for DeliveryState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What made an attempt happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// The plan of the retry policy.
    Scheduled,
    /// A person or a program asked for this one attempt (resend).
    Manual,
}

/// The order of work within a lane: a lower class goes first, and none starves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    First = 0,
    EarlyRetry = 1,
    LateRetry = 2,
    Replay = 3,
}

impl Class {
    pub const ALL: [Self; 4] = [Self::First, Self::EarlyRetry, Self::LateRetry, Self::Replay];

    /// The class of a planned attempt by its number, counted from 1.
    pub const fn of_attempt(number: u32) -> Self {
        match number {
            0 | 1 => Self::First,
            2 | 3 => Self::EarlyRetry,
            _ => Self::LateRetry,
        }
    }

    pub const fn from_index(index: u8) -> Option<Self> {
        match index {
            0 => Some(Self::First),
            1 => Some(Self::EarlyRetry),
            2 => Some(Self::LateRetry),
            3 => Some(Self::Replay),
            _ => None,
        }
    }
}

/// Which delivery: the key of everything that happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeliveryKey {
    pub endpoint_id: EndpointId,
    pub message_id: MessageId,
}

/// A delivery handed to one worker.
///
/// **Invariant:** an outcome is recorded only under the lease number it was claimed with, so that
/// a late worker cannot overwrite a newer truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub worker_id: WorkerId,
    pub number: u32,
    pub until: Timestamp,
}

/// A delivery under lease, with all that is needed for its attempt but the message and endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeasedDelivery {
    pub key: DeliveryKey,
    pub application_id: ApplicationId,
    pub lease: Lease,
    /// The number of this attempt, counted from 1; it was counted when the lease was taken.
    pub attempt: u32,
    /// How many of the attempts, with this one, count against the retry policy.
    pub plan_attempt: u32,
    pub class: Class,
    pub trigger: Trigger,
    /// When the plan would have tried, had a manual attempt not come first.
    pub planned_at: Option<Timestamp>,
    /// When the message was accepted: delivery times count from here.
    pub accepted_at: Timestamp,
    /// This attempt is the one probe of a half-open breaker.
    pub probe: bool,
}

/// What the policy makes of an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Delivered,
    RetryAt(Timestamp),
    Dead(Cause),
}

impl Verdict {
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::RetryAt(_) => "retry",
            Self::Dead(_) => "dead_letter",
        }
    }
}

/// Why a delivery ended without being delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The policy has no attempt left; the class is the last outcome's.
    Exhausted(OutcomeClass),
    /// The outcome is final by policy.
    Final(OutcomeClass),
    /// The receiver answered 410.
    Gone,
    /// The payload was expunged or its retention ended.
    PayloadGone,
    /// Cancelled, because the endpoint or its application was deleted.
    EndpointDeleted,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exhausted(class) => write!(f, "exhausted: {class}"),
            Self::Final(class) => write!(f, "final: {class}"),
            Self::Gone => f.write_str("gone"),
            Self::PayloadGone => f.write_str("payload gone"),
            Self::EndpointDeleted => f.write_str("endpoint deleted"),
        }
    }
}

/// One attempt with its verdict, ready to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub attempt_id: AttemptId,
    pub delivery: LeasedDelivery,
    /// When the attempt began, by the wall clock.
    pub started_at: Timestamp,
    pub ended_at: Timestamp,
    pub outcome: Outcome,
    pub verdict: Verdict,
    /// The dice of the lane's decisions (cooldown jitter).
    pub roll: u64,
}
