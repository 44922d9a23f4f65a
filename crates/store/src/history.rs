//! What was and how it stands: messages, attempts, deliveries, dead letters, health, the one row.

use crate::Result;
use crate::catalog::{Page, Slice};
use async_trait::async_trait;
use posthaste_core::delivery::{DeliveryKey, DeliveryState, Trigger};
use posthaste_core::event::{Channel, EventTypeName};
use posthaste_core::id::{ApplicationId, AttemptId, EndpointId, MessageId, NoticeId};
use posthaste_core::lane::Health;
use posthaste_core::latency::{Percentiles, Sketch};
use posthaste_core::message::Message;
use posthaste_core::outcome::Outcome;
use posthaste_core::time::Timestamp;
use std::time::Duration;

/// Reads only. Each call sees one state of the store, committed work and no other.
#[async_trait]
pub trait History: Send + Sync {
    /// By id or event id, within the application.
    async fn message(&self, application: ApplicationId, name: &str) -> Result<Option<Message>>;

    /// Newest first.
    async fn messages(
        &self,
        application: ApplicationId,
        filter: MessageFilter,
        page: Page<MessageId>,
    ) -> Result<Slice<Message>>;

    async fn attempt(
        &self,
        application: ApplicationId,
        message: MessageId,
        attempt: AttemptId,
    ) -> Result<Option<StoredAttempt>>;

    /// Newest first.
    async fn attempts_of_message(
        &self,
        application: ApplicationId,
        message: MessageId,
        filter: AttemptFilter,
        page: Page<AttemptId>,
    ) -> Result<Slice<StoredAttempt>>;

    /// Newest first.
    async fn attempts_of_endpoint(
        &self,
        endpoint: EndpointId,
        filter: AttemptFilter,
        page: Page<AttemptId>,
    ) -> Result<Slice<StoredAttempt>>;

    /// Messages that have a delivery for the endpoint, newest first.
    async fn messages_of_endpoint(
        &self,
        endpoint: EndpointId,
        filter: MessageFilter,
        states: Option<Vec<DeliveryState>>,
        page: Page<MessageId>,
    ) -> Result<Slice<(Message, Delivery)>>;

    /// Deliveries of one message, by endpoint id, deleted endpoints too.
    async fn deliveries_of_message(
        &self,
        application: ApplicationId,
        message: MessageId,
        page: Page<EndpointId>,
    ) -> Result<Slice<Delivery>>;

    async fn delivery(&self, key: DeliveryKey) -> Result<Option<Delivery>>;

    /// Newest first.
    async fn dead_letters(
        &self,
        filter: DeadLetterFilter,
        page: Page<MessageId>,
    ) -> Result<Slice<Delivery>>;

    /// `None` when the endpoint is not there.
    async fn health(&self, endpoint: EndpointId, now: Timestamp) -> Result<Option<EndpointHealth>>;

    /// The one row that tells how everything stands.
    async fn status(&self, now: Timestamp) -> Result<Status>;

    /// Newest first, at most `limit`.
    async fn notices(&self, application: Option<ApplicationId>, limit: u32) -> Result<Vec<Notice>>;
}

/// Which messages are listed; every field that is set narrows it. Times are those of acceptance,
/// or for attempts of their start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageFilter {
    pub channel: Option<Channel>,
    /// Empty: all.
    pub event_types: Vec<EventTypeName>,
    /// Exclusive.
    pub before: Option<Timestamp>,
    /// Inclusive.
    pub after: Option<Timestamp>,
}

/// Which attempts are listed; every field that is set narrows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttemptFilter {
    pub message: MessageFilter,
    /// `Some(true)`: only those that delivered; `Some(false)`: only those that failed.
    pub delivered: Option<bool>,
    /// 100, 200, ... 500.
    pub status_class: Option<u16>,
    pub endpoint_id: Option<EndpointId>,
}

/// Which dead letters are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// Empty: none. Filters below narrow it further.
    pub application_ids: Option<Vec<ApplicationId>>,
    pub endpoint_id: Option<EndpointId>,
    /// When it was given up; exclusive and inclusive.
    pub before: Option<Timestamp>,
    pub after: Option<Timestamp>,
}

/// An attempt as it was recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredAttempt {
    pub id: AttemptId,
    pub key: DeliveryKey,
    /// Counted from 1 within the delivery.
    pub number: u32,
    pub trigger: Trigger,
    pub started_at: Timestamp,
    /// Where it went; may have changed since.
    pub url: String,
    pub outcome: Outcome,
    /// `Verdict::as_str`, or `stale` when the lease had run out.
    pub verdict: String,
    pub next_attempt_at: Option<Timestamp>,
}

/// How one delivery stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    pub key: DeliveryKey,
    pub application_id: ApplicationId,
    pub state: DeliveryState,
    pub attempts: u32,
    pub accepted_at: Timestamp,
    /// When it is tried next, if it waits for a time.
    pub next_attempt_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    /// Why it was given up or cancelled (`Cause`'s text).
    pub cause: Option<String>,
    /// Status of the last complete answer.
    pub last_status: Option<u16>,
}

/// How one endpoint does.
#[derive(Clone, Debug)]
pub struct EndpointHealth {
    pub health: Health,
    /// All windows of the last 24 h, merged over processes, oldest first.
    pub windows: Vec<(Timestamp, Sketch)>,
    pub waiting: u64,
    pub held: u64,
}

impl EndpointHealth {
    /// Over the last 24 h; `None` without samples.
    pub fn percentiles(&self) -> Option<Percentiles> {
        let mut whole = Sketch::default();
        for (_, sketch) in &self.windows {
            whole.merge(sketch);
        }
        whole.percentiles()
    }
}

/// The one row: how all deliveries of the store stand.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    pub pending: u64,
    pub awaiting_retry: u64,
    pub in_flight: u64,
    pub dead_letter: u64,
    pub held: u64,
    pub delivered_last_hour: u64,
    /// Deliveries given up in the last hour, by the time they were given up.
    pub failed_last_hour: u64,
    /// Attempts that failed in the last hour.
    pub failed_attempts_last_hour: u64,
    /// With when it was accepted. What is held is not on its way.
    pub oldest_undelivered: Option<(DeliveryKey, Timestamp)>,
    /// When the waiting delivery that has been due for longest became due; `None`: none is due.
    pub oldest_due_at: Option<Timestamp>,
    /// From accepted to delivered, deliveries of the last hour.
    pub delivery_time: Option<Percentiles>,
    pub delivery_time_average: Option<Duration>,
    /// Open breakers, disabled endpoints, live workers.
    pub breakers_open: u64,
    pub endpoints_disabled: u64,
    pub workers: u64,
}

/// Something an operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub id: NoticeId,
    pub application_id: ApplicationId,
    pub endpoint_id: EndpointId,
    /// `endpoint.disabled`, `endpoint.failing`.
    pub kind: String,
    pub detail: String,
}
