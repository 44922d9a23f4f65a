//! What the cases are made of: a store, virtual time, ids in order, and short names for what
//! happens again and again.

use super::Ground;
use crate::Store;
use crate::catalog::{Order, Page};
use crate::outbox::{
    Acceptance, Accepted, Claim, Claimed, IdempotencyKey, LeaseTerms, NewDelivery, RecordBatch,
    Recorded, Start,
};
use crate::upkeep::{Step, Task, TaskStatus};
use bytes::Bytes;
use posthaste_core::breaker::BreakerPolicy;
use posthaste_core::delivery::{
    Cause, DeliveryKey, DeliveryState, Lease, LeasedDelivery, Record, Trigger, Verdict,
};
use posthaste_core::endpoint::{
    Application, DisabledReason, Endpoint, EndpointHeaders, EndpointPolicy, EndpointUrl,
};
use posthaste_core::event::{EventId, EventTypeName, OrganisationId};
use posthaste_core::id::{ApplicationId, AttemptId, EndpointId, MessageId, TaskId, WorkerId};
use posthaste_core::lane::LaneRules;
use posthaste_core::message::Message;
use posthaste_core::outcome::{Answer, Outcome, Response, Timing};
use posthaste_core::sign::{Secret, SecretRing};
use posthaste_core::time::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// When every case begins.
const START: Timestamp = Timestamp::from_secs(1_700_000_000);
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// A store and its surroundings.
pub struct World {
    pub(crate) store: Arc<dyn Store>,
    now: AtomicI64,
    next: AtomicU64,
}

/// A claimed delivery with all that belongs to it.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub delivery: LeasedDelivery,
    pub message: Arc<Message>,
    pub endpoint: Arc<Endpoint>,
}

impl World {
    pub async fn new(ground: &dyn Ground) -> Self {
        Self::on(ground.open().await)
    }

    pub fn on(store: Arc<dyn Store>) -> Self {
        Self { store, now: AtomicI64::new(START.as_micros()), next: AtomicU64::new(1) }
    }

    /// Leaves `count` deliveries under lease of `worker`, for what a back-end's own tests do next.
    pub async fn leave_leased(&self, worker: WorkerId, count: usize) {
        let application = self.application().await;
        self.endpoint(&application).await;
        for _ in 0..count {
            self.publish(&application).await;
        }
        assert_eq!(self.claim(worker).await.len(), count);
    }

    /// Leaves one delivery that waits, for what a back-end's own tests do next.
    pub async fn leave_due(&self) {
        let application = self.application().await;
        self.endpoint(&application).await;
        self.publish(&application).await;
    }

    /// A message with this event id that is about to be leased to `worker` as it is accepted, and
    /// whose it is; for what a back-end's own tests put in its way.
    pub async fn leased_acceptance(
        &self,
        worker: WorkerId,
        event_id: &str,
    ) -> (ApplicationId, Acceptance) {
        let application = self.application().await;
        self.endpoint(&application).await;
        let mut message = self.message(&application);
        message.event_id = Some(EventId::new(event_id).unwrap());
        let terms = LeaseTerms { worker_id: worker, until: self.now().after(LEASE) };
        (application.id, leased(self.acceptance(message).await, terms))
    }

    /// The same data through another handle, at the same time, with the same row of ids.
    pub(crate) async fn another(&self, ground: &dyn Ground) -> Self {
        self.moved_to(ground.open().await)
    }

    /// The same on another handle.
    pub fn moved_to(&self, store: Arc<dyn Store>) -> Self {
        Self {
            store,
            now: AtomicI64::new(self.now().as_micros()),
            next: AtomicU64::new(self.number() + 1_000_000),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now.load(Ordering::SeqCst))
    }

    pub(crate) fn pass(&self, span: Duration) -> Timestamp {
        self.now.store(self.now().after(span).as_micros(), Ordering::SeqCst);
        self.now()
    }

    pub(crate) fn pass_secs(&self, secs: u64) -> Timestamp {
        self.pass(Duration::from_secs(secs))
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::SeqCst)
    }

    /// Ids of one millisecond are in the order in which they were made.
    pub(crate) fn random(&self) -> [u8; 10] {
        let mut random = [0; 10];
        random[2..].copy_from_slice(&self.number().to_be_bytes());
        random
    }

    pub(crate) fn rules(&self) -> LaneRules {
        LaneRules {
            breaker: BreakerPolicy {
                failure_threshold: 3,
                cooldown: Duration::from_secs(5),
                cooldown_max: Duration::from_secs(3_600),
            },
            disable_after: Some(Duration::from_secs(5 * 86_400)),
            in_flight_max: 100,
        }
    }

    pub(crate) fn new_application(&self) -> Application {
        Application {
            id: ApplicationId::new(self.now(), self.random()),
            organisation_id: organisation(),
            uid: None,
            name: "Shop".to_owned(),
            throttle_rate: None,
            metadata: BTreeMap::new(),
            created_at: self.now(),
            updated_at: self.now(),
        }
    }

    pub(crate) async fn application(&self) -> Application {
        let application = self.new_application();
        self.store.create_application(application.clone()).await.unwrap();
        application
    }

    pub(crate) fn new_endpoint(&self, application: &Application) -> Endpoint {
        Endpoint {
            id: EndpointId::new(self.now(), self.random()),
            application_id: application.id,
            uid: None,
            url: EndpointUrl::parse("https://receiver.example/hook").unwrap(),
            description: String::new(),
            disabled: None,
            event_types: None,
            channels: None,
            throttle_rate: None,
            version: 1,
            metadata: BTreeMap::new(),
            headers: EndpointHeaders::default(),
            secrets: SecretRing { current: Secret::generate_hmac([7; 32]), old: Vec::new() },
            policy: EndpointPolicy::default(),
            created_at: self.now(),
            updated_at: self.now(),
        }
    }

    pub(crate) async fn endpoint(&self, application: &Application) -> Endpoint {
        self.endpoint_with(application, |_| {}).await
    }

    pub(crate) async fn endpoint_with(
        &self,
        application: &Application,
        change: impl FnOnce(&mut Endpoint),
    ) -> Endpoint {
        let mut endpoint = self.new_endpoint(application);
        change(&mut endpoint);
        self.store.create_endpoint(endpoint.clone()).await.unwrap();
        endpoint
    }

    /// Writes a change of an endpoint, a microsecond later.
    pub(crate) async fn change(
        &self,
        endpoint: &Endpoint,
        change: impl FnOnce(&mut Endpoint),
    ) -> Endpoint {
        let name = endpoint.id.to_string();
        let found = self.store.endpoint(endpoint.application_id, &name).await.unwrap();
        let mut endpoint = found.expect("the endpoint is there");
        let read_at = endpoint.updated_at;
        change(&mut endpoint);
        endpoint.updated_at = self.pass(Duration::from_micros(1)).max(read_at);
        self.store.update_endpoint(endpoint.clone(), read_at).await.unwrap();
        endpoint
    }

    pub(crate) async fn disable(&self, endpoint: &Endpoint) -> Endpoint {
        self.change(endpoint, |endpoint| endpoint.disabled = Some(DisabledReason::Manual)).await
    }

    pub(crate) async fn enable(&self, endpoint: &Endpoint) -> Endpoint {
        self.change(endpoint, |endpoint| endpoint.disabled = None).await
    }

    pub(crate) fn message(&self, application: &Application) -> Message {
        Message {
            id: MessageId::new(self.now(), self.random()),
            application_id: application.id,
            event_id: None,
            event_type: EventTypeName::new("order.paid").unwrap(),
            channels: Vec::new(),
            payload: Some(Bytes::from_static(b"{\"total\":12.50}")),
            created_at: self.now(),
            expires_at: self.now().after(Duration::from_secs(90 * 86_400)),
        }
    }

    /// A message on its way to all endpoints of its application, disabled ones held.
    pub(crate) async fn acceptance(&self, message: Message) -> Acceptance {
        let routes = self.store.routes(message.application_id).await.unwrap();
        let routes = routes.expect("the application is there");
        let start = |endpoint: &Endpoint| match endpoint.disabled {
            None => Start::Due,
            Some(_) => Start::Held,
        };
        let deliveries = routes.endpoints.iter();
        Acceptance {
            message: Arc::new(message),
            routes_version: routes.version,
            deliveries: deliveries
                .map(|endpoint| NewDelivery { endpoint_id: endpoint.id, start: start(endpoint) })
                .collect(),
            idempotency: None,
            lease: None,
        }
    }

    /// Publishes a message to all endpoints of the application.
    pub(crate) async fn publish(&self, application: &Application) -> MessageId {
        self.publish_message(self.message(application)).await
    }

    pub(crate) async fn publish_message(&self, message: Message) -> MessageId {
        let id = message.id;
        let acceptance = self.acceptance(message).await;
        assert_eq!(self.store.accept(acceptance).await.unwrap(), Accepted::Committed);
        id
    }

    /// Publishes a message whose deliveries are leased to `worker` from the start.
    pub(crate) async fn publish_leased(
        &self,
        application: &Application,
        worker: WorkerId,
    ) -> Vec<Job> {
        let until = self.now().after(LEASE);
        let acceptance = self.acceptance(self.message(application)).await;
        let acceptance = leased(acceptance, LeaseTerms { worker_id: worker, until });
        assert_eq!(self.store.accept(acceptance.clone()).await.unwrap(), Accepted::Committed);
        let message = acceptance.message;
        let routes = self.store.routes(application.id).await.unwrap().unwrap();
        let job = |endpoint: &Arc<Endpoint>| Job {
            delivery: LeasedDelivery {
                key: DeliveryKey { endpoint_id: endpoint.id, message_id: message.id },
                application_id: application.id,
                lease: Lease { worker_id: worker, number: 1, until },
                attempt: 1,
                plan_attempt: 1,
                class: posthaste_core::delivery::Class::First,
                trigger: Trigger::Scheduled,
                planned_at: None,
                accepted_at: message.created_at,
                probe: false,
            },
            message: Arc::clone(&message),
            endpoint: Arc::clone(endpoint),
        };
        routes.endpoints.iter().map(job).collect()
    }

    pub(crate) fn request(&self, worker: WorkerId) -> Claim {
        Claim {
            worker_id: worker,
            now: self.now(),
            lease_for: LEASE,
            deliveries_max: 256,
            lane_max: 100,
            full: Vec::new(),
            rules: self.rules(),
        }
    }

    pub(crate) async fn claimed(&self, worker: WorkerId) -> Claimed {
        self.store.claim(self.request(worker)).await.unwrap()
    }

    pub(crate) async fn claim(&self, worker: WorkerId) -> Vec<Job> {
        jobs(self.claimed(worker).await)
    }

    pub(crate) async fn claim_one(&self, worker: WorkerId) -> Job {
        let mut jobs = self.claim(worker).await;
        assert_eq!(jobs.len(), 1, "one delivery is due");
        jobs.remove(0)
    }

    pub(crate) fn attempt(&self, job: &Job, outcome: Outcome, verdict: Verdict) -> Record {
        Record {
            attempt_id: AttemptId::new(self.now(), self.random()),
            delivery: job.delivery,
            started_at: self.now(),
            ended_at: self.now(),
            outcome,
            verdict,
            roll: self.number(),
        }
    }

    pub(crate) async fn record_all(&self, records: Vec<(Record, Arc<Endpoint>)>) -> Recorded {
        let worker =
            records.first().map_or(worker(1), |(record, _)| record.delivery.lease.worker_id);
        let batch = RecordBatch {
            worker_id: worker,
            now: self.now(),
            rules: self.rules(),
            records,
            sketches: Vec::new(),
        };
        self.store.record(batch).await.unwrap()
    }

    pub(crate) async fn record(&self, job: &Job, outcome: Outcome, verdict: Verdict) -> Recorded {
        let record = self.attempt(job, outcome, verdict);
        self.record_all(vec![(record, Arc::clone(&job.endpoint))]).await
    }

    pub(crate) async fn deliver(&self, job: &Job) -> Recorded {
        self.record(job, status(200), Verdict::Delivered).await
    }

    /// The attempt failed with 500; it is tried again after `secs`.
    pub(crate) async fn retry(&self, job: &Job, secs: u64) -> Recorded {
        let at = self.now().after(Duration::from_secs(secs));
        self.record(job, status(500), Verdict::RetryAt(at)).await
    }

    /// The attempt failed with 422, for good.
    pub(crate) async fn kill(&self, job: &Job) -> Recorded {
        let outcome = status(422);
        let cause = Cause::Final(outcome.class());
        self.record(job, outcome, Verdict::Dead(cause)).await
    }

    pub(crate) async fn state(&self, key: DeliveryKey) -> DeliveryState {
        self.delivery(key).await.state
    }

    pub(crate) async fn delivery(&self, key: DeliveryKey) -> crate::history::Delivery {
        self.store.delivery(key).await.unwrap().expect("the delivery is there")
    }

    /// Steps until there is nothing left to do; how many it took.
    pub(crate) async fn steps(&self) -> usize {
        for steps in 0..1_000 {
            if self.store.step(self.now()).await.unwrap() == Step::Idle {
                return steps;
            }
        }
        panic!("the steps never end");
    }

    pub(crate) fn replay(&self, endpoint: &Endpoint, states: &[DeliveryState]) -> Task {
        Task {
            id: TaskId::new(self.now(), self.random()),
            application_id: endpoint.application_id,
            endpoint_id: endpoint.id,
            since: START.before(Duration::from_secs(86_400)),
            until: self.now().after(Duration::from_secs(86_400)),
            states: states.to_vec(),
            rate_per_second: None,
            status: TaskStatus::Running,
            replayed: 0,
            skipped: 0,
            cursor: None,
            created_at: self.now(),
            updated_at: self.now(),
        }
    }

    /// Brings the lane's breaker to open: three failures, which wait for a retry in an hour.
    pub(crate) async fn open_breaker(&self, application: &Application) -> Vec<DeliveryKey> {
        let mut keys = Vec::new();
        for _ in 0..3 {
            self.publish(application).await;
            let job = self.claim_one(worker(1)).await;
            keys.push(job.delivery.key);
            self.retry(&job, 3_600).await;
        }
        keys
    }
}

fn leased(mut acceptance: Acceptance, terms: LeaseTerms) -> Acceptance {
    acceptance.lease = Some(terms);
    for delivery in &mut acceptance.deliveries {
        delivery.start = Start::Leased;
    }
    acceptance
}

pub(crate) fn organisation() -> OrganisationId {
    OrganisationId::new("org_one").unwrap()
}

pub(crate) fn worker(number: u8) -> WorkerId {
    WorkerId::from_bytes([number; 16])
}

pub(crate) fn key(endpoint: &Endpoint, message: MessageId) -> DeliveryKey {
    DeliveryKey { endpoint_id: endpoint.id, message_id: message }
}

pub(crate) fn jobs(claimed: Claimed) -> Vec<Job> {
    let of_lane = |lane: crate::outbox::ClaimedLane| {
        let endpoint = lane.endpoint;
        lane.deliveries.into_iter().map(move |(delivery, message)| Job {
            delivery,
            message,
            endpoint: Arc::clone(&endpoint),
        })
    };
    claimed.lanes.into_iter().flat_map(of_lane).collect()
}

/// A complete answer, 50 ms after the request.
pub(crate) fn status(status: u16) -> Outcome {
    respond(Response { status, ..Response::default() })
}

pub(crate) fn respond(response: Response) -> Outcome {
    Outcome {
        answer: Answer::Response(response),
        timing: Timing { total: Duration::from_millis(50), ..Timing::default() },
        remote: None,
    }
}

pub(crate) fn idempotency(key: u8, request: u8) -> IdempotencyKey {
    IdempotencyKey { key_hash: [key; 32], request_hash: [request; 32] }
}

pub(crate) fn page<Key>(limit: u32) -> Page<Key> {
    Page { limit, order: Order::Descending, from: None }
}
