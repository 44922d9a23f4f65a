//! The hot road: accept a message with its deliveries, claim what is due, record what happened.
//!
//! **Invariant:** no transaction is held while HTTP runs. A claim writes a lease with a number;
//! recording requires that number.

use crate::Result;
use async_trait::async_trait;
use posthaste_core::delivery::{DeliveryKey, LeasedDelivery, Record};
use posthaste_core::endpoint::Endpoint;
use posthaste_core::id::{ApplicationId, EndpointId, MessageId, WorkerId};
use posthaste_core::lane::{Event, Health, LaneRules};
use posthaste_core::message::Message;
use posthaste_core::time::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// What happens to every message and delivery.
#[async_trait]
pub trait Outbox: Send + Sync {
    /// Commits a message and all its deliveries in one durable step, together with its
    /// idempotency key. Concurrent callers share a transaction; one caller's conflict does not
    /// touch another's message.
    async fn accept(&self, acceptance: Acceptance) -> Result<Accepted>;

    /// Leases due deliveries, fairly between lanes: the lane that waited longest goes first, and
    /// none gives more than `lane_max` at once. Open breakers, quiet endpoints, empty rate limits,
    /// disabled endpoints and `full` lanes are passed over without touching their deliveries.
    /// Attempts are counted here.
    async fn claim(&self, claim: Claim) -> Result<Claimed>;

    /// Writes attempts, delivery states, lanes' health, counts and sketches in one transaction.
    /// A record whose lease number is no longer in force is kept as an attempt, but changes
    /// nothing else, and is reported as stale.
    async fn record(&self, batch: RecordBatch) -> Result<Recorded>;

    /// Gives leases back unused: the deliveries are due again at once and the attempt is
    /// uncounted. A lease that is no longer in force is left alone.
    async fn give_back(&self, leases: Vec<LeasedDelivery>, now: Timestamp) -> Result<()>;

    /// One more attempt by hand, now, whatever the filters say. A waiting retry stays planned for
    /// its time should this attempt fail; a finished delivery gets this one attempt. Fails with
    /// `NotFound` when message or endpoint are not there, with `Limit` when the payload is gone.
    async fn resend(&self, key: DeliveryKey, now: Timestamp) -> Result<Resent>;
}

/// A message to be accepted.
#[derive(Clone, Debug)]
pub struct Acceptance {
    pub message: Arc<Message>,
    /// The version of the routes that `deliveries` were made from.
    pub routes_version: i64,
    pub deliveries: Vec<NewDelivery>,
    pub idempotency: Option<IdempotencyKey>,
    /// Under which lease deliveries with `Start::Leased` are committed.
    pub lease: Option<LeaseTerms>,
}

/// A delivery of a message that is being accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewDelivery {
    pub endpoint_id: EndpointId,
    pub start: Start,
}

/// A delivery's first state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Due at once, for any worker.
    Due,
    /// Leased to the accepting process (number 1, attempt 1), which sends it from memory.
    Leased,
    /// The endpoint is disabled: kept until somebody releases it.
    Held,
}

/// Who gets a lease, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    pub worker_id: WorkerId,
    pub until: Timestamp,
}

/// A client's promise that two requests are one: hashes of who and which key, and of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    pub key_hash: [u8; 32],
    pub request_hash: [u8; 32],
}

/// What became of an acceptance. Unless it is `Committed`, nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    Committed,
    /// The same request was accepted before, as this message.
    Repeated(MessageId),
    /// The idempotency key was used with another request.
    KeyReused,
    /// The application has a message with this event id.
    EventIdTaken(MessageId),
    /// The routes changed since they were read: read them again.
    RoutesChanged,
    /// The application does not exist (any more).
    NoApplication,
}

/// What a worker can take now.
#[derive(Clone, Debug)]
pub struct Claim {
    pub worker_id: WorkerId,
    pub now: Timestamp,
    /// How long a lease lives; must outlive the longest exchange.
    pub lease_for: Duration,
    pub deliveries_max: usize,
    /// Deliveries of one lane in this claim.
    pub lane_max: usize,
    /// Lanes of this worker that can take fewer than `lane_max` now, with what they can take.
    pub full: Vec<(EndpointId, u32)>,
    pub rules: LaneRules,
}

/// What a claim brought, and when the next one is worth making.
#[derive(Clone, Debug, Default)]
pub struct Claimed {
    pub lanes: Vec<ClaimedLane>,
    /// When some lane has something due that this claim left or did not find; `None`: nothing
    /// waits, or what waits is in `full` lanes.
    pub next_due_at: Option<Timestamp>,
}

/// Deliveries for one endpoint, under lease, with all that their attempts need.
#[derive(Clone, Debug)]
pub struct ClaimedLane {
    /// As it is now: current URL, headers and secrets.
    pub endpoint: Arc<Endpoint>,
    pub health: Health,
    pub deliveries: Vec<(LeasedDelivery, Arc<Message>)>,
}

/// One worker's records, written in one transaction.
#[derive(Clone, Debug)]
pub struct RecordBatch {
    pub worker_id: WorkerId,
    pub now: Timestamp,
    pub rules: LaneRules,
    /// At most `limits::RECORD_BATCH_MAX`.
    pub records: Vec<(Record, Arc<Endpoint>)>,
    pub sketches: Vec<WindowSketch>,
}

/// One process's sketch of one window so far; written over its earlier self.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowSketch {
    pub scope: Scope,
    /// Start of the window.
    pub start: Timestamp,
    /// `latency::Sketch::to_bytes`.
    pub sketch: Vec<u8>,
    /// The endpoint's P95 of the last hour or two in milliseconds as the worker knows it; 0:
    /// unknown.
    pub p95_ms: u32,
}

/// What a sketch is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Latency of attempts to one endpoint, in windows of an hour.
    EndpointLatency(EndpointId),
    /// From accepted to delivered over all endpoints, in windows of a minute.
    DeliveryTime,
}

/// What a batch changed.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// Whose lease was no longer in force: a duplicate may have been sent.
    pub stale: Vec<DeliveryKey>,
    /// The health of every lane in the batch, as it is now.
    pub lanes: Vec<(EndpointId, Health)>,
    pub events: Vec<LaneEvent>,
    /// Something became due that the recording worker may claim at once (a drain).
    pub due_now: bool,
}

/// What changed about a lane, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneEvent {
    pub application_id: ApplicationId,
    pub endpoint_id: EndpointId,
    pub event: Event,
}

/// What became of a resend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resent {
    /// One attempt is due now.
    Due,
    /// An attempt is in flight already; it serves as the one that was asked for.
    InFlight,
    /// The endpoint is disabled: nothing will be sent.
    EndpointDisabled,
}
