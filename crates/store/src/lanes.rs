//! Lanes and open deliveries as both back-ends read them, and what is decided about them alike.

use crate::Result;
use crate::rows::{self, Fields};
use posthaste_core::delivery::{Cause, Class, DeliveryKey, Lease, Record, Trigger, Verdict};
use posthaste_core::id::{ApplicationId, EndpointId, NoticeId, WorkerId};
use posthaste_core::lane::{Event, Health, Observation};
use posthaste_core::outcome::{FailureKind, OutcomeClass};
use posthaste_core::retry;
use posthaste_core::time::Timestamp;

/// What may be done with a lane's deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneState {
    InUse,
    Disabled,
    Deleted,
}

/// One lane as its row was.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub endpoint_id: EndpointId,
    pub application_id: ApplicationId,
    pub next_due_at: Option<Timestamp>,
    pub state: LaneState,
    /// A sweep is not finished: nothing may be claimed.
    pub sweeping: bool,
    pub endpoint_version: i64,
    pub health: Health,
}

impl LaneState {
    pub const fn column(self) -> i64 {
        match self {
            Self::InUse => 0,
            Self::Disabled => 1,
            Self::Deleted => 2,
        }
    }

    /// The state of a delivery that would wait in such a lane.
    pub const fn waits_as(self) -> i64 {
        match self {
            Self::InUse => rows::WAITING,
            Self::Disabled | Self::Deleted => rows::HELD,
        }
    }
}

impl Lane {
    pub fn read(row: &mut Fields<'_>) -> Result<Self> {
        Ok(Self {
            endpoint_id: row.id()?,
            application_id: row.id()?,
            next_due_at: row.opt_time()?,
            state: match row.int()? {
                0 => LaneState::InUse,
                1 => LaneState::Disabled,
                _ => LaneState::Deleted,
            },
            sweeping: row.flag()?,
            endpoint_version: row.int()?,
            health: rows::health(row)?,
        })
    }
}

/// A delivery's end, as its row.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub key: DeliveryKey,
    pub application_id: ApplicationId,
    pub state: i64,
    pub cause: Option<Cause>,
    pub attempts: u32,
    pub lease_number: u32,
    pub accepted_at: Timestamp,
    pub ended_at: Timestamp,
    pub last_status: Option<u16>,
}

/// Counts of one minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub minute: i64,
    pub delivered: u32,
    pub failed: u32,
    pub failed_attempts: u32,
    pub timed: u32,
    /// Sum of the times from accepted to delivered, in microseconds.
    pub delivery_time: i64,
}

impl Tally {
    /// Counts a record that was in force.
    pub fn count(&mut self, record: &Record) {
        match &record.verdict {
            Verdict::Delivered => {
                self.delivered += 1;
                let delivery = &record.delivery;
                // Resends and replays say nothing about how fast we are.
                if delivery.trigger == Trigger::Scheduled && delivery.class != Class::Replay {
                    let time = rows::micros(record.ended_at.since(delivery.accepted_at));
                    self.timed += 1;
                    self.delivery_time = self.delivery_time.saturating_add(time);
                }
            }
            Verdict::Dead(_) => self.failed += 1,
            Verdict::RetryAt(_) => {}
        }
        self.failed_attempts += u32::from(record.outcome.class() != OutcomeClass::Success);
    }
}

pub(crate) fn minute_of(at: Timestamp) -> i64 {
    at.as_secs().div_euclid(60)
}

/// What an operator should hear about a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneNotice {
    pub event: Event,
    pub at: Timestamp,
    /// Makes the notice's id unique.
    pub roll: u64,
}

impl LaneNotice {
    pub fn id(&self, endpoint: EndpointId) -> NoticeId {
        let mut random = [0; 10];
        random[..8].copy_from_slice(&self.roll.to_be_bytes());
        random[8..].copy_from_slice(&endpoint.as_bytes()[14..]);
        NoticeId::new(self.at, random)
    }

    pub fn text(&self) -> Option<(&'static str, String)> {
        let at = self.at.as_secs();
        match self.event {
            Event::Gone => {
                Some(("endpoint.disabled", format!("disabled at {at}: it answered 410 (gone)")))
            }
            Event::Exhausted { since } => Some((
                "endpoint.disabled",
                format!("disabled at {at}: it failed without a break since {}", since.as_secs()),
            )),
            Event::Failing { percent, since } => Some((
                "endpoint.failing",
                format!(
                    "failing since {}: {percent} % of the time after which it is disabled",
                    since.as_secs()
                ),
            )),
            Event::Opened { .. } | Event::Reopened { .. } | Event::Closed => None,
        }
    }
}

/// An open delivery that was read.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub application_id: ApplicationId,
    pub state: i64,
    pub attempts: u32,
    pub lease_number: u32,
    pub lease_worker: Option<WorkerId>,
    pub lease_until: Option<Timestamp>,
    pub accepted_at: Timestamp,
    pub last_status: Option<u16>,
}

impl Open {
    pub fn read(row: &mut Fields<'_>) -> Result<Self> {
        let (application_id, state) = (row.id()?, row.int()?);
        let (_class, _due_at) = (row.int()?, row.int()?);
        let attempts = row.number()?;
        let (_plan_attempts, _trigger, _planned_at) = (row.int()?, row.int()?, row.opt_int()?);
        let (lease_number, lease_worker) = (row.number()?, row.opt_id()?);
        let lease_until = row.opt_time()?;
        Ok(Self {
            application_id,
            state,
            attempts,
            lease_number,
            lease_worker,
            lease_until,
            accepted_at: row.time()?,
            last_status: row.opt_number()?,
        })
    }

    /// Whether this lease is in force.
    pub fn is_leased(&self, lease: &Lease) -> bool {
        self.state == rows::LEASED
            && self.lease_number == lease.number
            && self.lease_worker == Some(lease.worker_id)
    }

    /// The row of a delivery that ends without another attempt.
    pub fn ended(&self, key: DeliveryKey, state: i64, cause: Cause, at: Timestamp) -> Ended {
        Ended {
            key,
            application_id: self.application_id,
            state,
            cause: Some(cause),
            attempts: self.attempts,
            lease_number: self.lease_number,
            accepted_at: self.accepted_at,
            ended_at: at,
            last_status: self.last_status,
        }
    }
}

/// The class of what a delivery last died of, when its attempts are used up without an answer.
pub(crate) fn last_class(last_status: Option<u16>) -> OutcomeClass {
    match last_status {
        Some(status) => OutcomeClass::Status(status),
        None => OutcomeClass::Failure(FailureKind::Local),
    }
}

/// What a record shows about its lane.
pub(crate) fn observe(record: &Record, health: &Health) -> Observation {
    let delivery = &record.delivery;
    let asked = record.outcome.retry_after();
    Observation {
        at: record.ended_at,
        class: record.outcome.class(),
        retry_after: asked.and_then(|text| retry::retry_after(text, record.ended_at)),
        latency: record.outcome.timing.total,
        probe: delivery.probe && health.awaits(delivery.lease.until),
    }
}
