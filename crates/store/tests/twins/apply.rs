//! Operations as calls.

use crate::operation::{Accept, Change, Operation};
use crate::pair::{Checked, Out, Pair, both, organisation, rules, worker};
use bytes::Bytes;
use posthaste_core::delivery::{
    Cause, Class, DeliveryKey, DeliveryState, Lease, LeasedDelivery, Record, Trigger, Verdict,
};
use posthaste_core::endpoint::{
    Application, DisabledReason, Endpoint, EndpointHeaders, EndpointPolicy, EndpointUrl, EventType,
};
use posthaste_core::event::{Channel, EventTypeName, FeatureFlag};
use posthaste_core::id::{ApplicationId, AttemptId, EndpointId, MessageId};
use posthaste_core::latency::Sketch;
use posthaste_core::limits::HEARTBEAT_LOST_AFTER;
use posthaste_core::message::Message;
use posthaste_core::outcome::{
    Answer, Failure, FailureKind, Outcome, OutcomeClass, Phase, Response, Timing,
};
use posthaste_core::sign::{Secret, SecretRing};
use posthaste_core::time::Timestamp;
use posthaste_store::catalog::{Begun, KeptAnswer};
use posthaste_store::outbox::{
    Acceptance, Accepted, Claim, IdempotencyKey, LeaseTerms, NewDelivery, RecordBatch, Scope,
    Start, WindowSketch,
};
use posthaste_store::upkeep::{Step, Task, TaskStatus};
use posthaste_store::{Catalog, Outbox, Upkeep};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(30);
/// More steps than any sequence leaves to do.
const STEPS_MAX: usize = 1_000;

impl Pair {
    pub async fn apply(&mut self, operation: &Operation) -> Checked {
        match operation {
            Operation::Pass(_) => Ok(()),
            Operation::CreateApplication { uid, rate } => {
                self.create_application(*uid, *rate).await
            }
            Operation::UpdateApplication { application, uid, rate, stale } => {
                self.update_application(*application, *uid, *rate, *stale).await
            }
            Operation::DeleteApplication(application) => {
                let Some(id) = self.application(*application) else { return Ok(()) };
                both!(self, delete_application(id, self.now)).map(drop)
            }
            Operation::CreateEndpoint { application, uid, rate, disabled } => {
                self.create_endpoint(*application, *uid, *rate, *disabled).await
            }
            Operation::UpdateEndpoint { endpoint, uid, rate, stale } => {
                let (uid, rate) = (*uid, *rate);
                self.change_endpoint(*endpoint, *stale, |endpoint| {
                    endpoint.uid = uid.map(|uid| format!("e{uid}").parse_uid());
                    endpoint.throttle_rate = rate;
                    endpoint.description = format!("{rate:?}");
                })
                .await
            }
            Operation::Toggle(endpoint) => {
                self.change_endpoint(*endpoint, false, |endpoint| {
                    endpoint.disabled = match endpoint.disabled {
                        Some(_) => None,
                        None => Some(DisabledReason::Manual),
                    };
                })
                .await
            }
            Operation::DeleteEndpoint(endpoint) => {
                let Some((_, id)) = self.endpoint(*endpoint) else { return Ok(()) };
                both!(self, delete_endpoint(id, self.now)).map(drop)
            }
            Operation::EventType { name, change, flag } => {
                self.change_event_type(*name, change, *flag).await
            }
            Operation::Request { step, key, request } => self.request(*step, *key, *request).await,
            Operation::Read(read) => self.read(read).await,
            _ => self.deliver(operation).await,
        }
    }

    /// What happens to messages and deliveries.
    async fn deliver(&mut self, operation: &Operation) -> Checked {
        match operation {
            Operation::Accept(accept) => self.accept(accept).await,
            Operation::Claim { worker, deliveries_max, lane_max, full } => {
                self.claim(*worker, *deliveries_max, *lane_max, *full).await
            }
            Operation::Record { attempts, again, sketch } => {
                self.record(attempts, *again, *sketch).await
            }
            Operation::GiveBack(count) => {
                let count = usize::from(*count).min(self.out.len());
                let leases: Vec<_> = self.out.drain(..count).map(|(lease, _)| lease).collect();
                both!(self, give_back(leases, self.now)).map(drop)
            }
            Operation::Resend { endpoint, message } => {
                let (endpoint, message) = (self.endpoint(*endpoint), self.message(*message));
                let (Some((_, endpoint_id)), Some((_, message_id))) = (endpoint, message) else {
                    return Ok(());
                };
                both!(self, resend(DeliveryKey { endpoint_id, message_id }, self.now)).map(drop)
            }
            Operation::Heartbeat(number) => {
                both!(self, heartbeat(worker(*number), self.now)).map(drop)
            }
            Operation::Recover { silent } => {
                let span = if *silent { Duration::from_secs(12) } else { LEASE * 10 };
                let silent_since = self.now.before(span);
                self.silent_since = self.silent_since.max(silent_since);
                both!(self, recover(self.now, silent_since)).map(drop)
            }
            Operation::Retire(number) => {
                self.silent_since = self.silent_since.max(self.now.before(HEARTBEAT_LOST_AFTER));
                both!(self, retire(worker(*number), self.now)).map(drop)
            }
            Operation::Steps => self.steps().await,
            Operation::Replay { endpoint, dead, held, rate, again } => {
                self.replay(*endpoint, [*dead, *held], *rate, *again).await
            }
            Operation::Prune => both!(self, prune(self.now)).map(drop),
            _ => Ok(()),
        }
    }

    async fn create_application(&mut self, uid: Option<u8>, rate: Option<u16>) -> Checked {
        let application = Application {
            id: ApplicationId::new(self.now, self.random()),
            organisation_id: organisation(),
            uid: uid.map(|uid| format!("a{uid}").parse_uid()),
            name: "Shop".to_owned(),
            throttle_rate: rate,
            metadata: BTreeMap::from([("tier".to_owned(), "gold".to_owned())]),
            created_at: self.now,
            updated_at: self.now,
        };
        if both!(self, create_application(application))?.is_some() {
            self.applications.push(application.id);
        }
        Ok(())
    }

    async fn update_application(
        &mut self,
        which: u8,
        uid: Option<u8>,
        rate: Option<u16>,
        stale: bool,
    ) -> Checked {
        let Some(id) = self.application(which) else { return Ok(()) };
        let found = both!(self, application(&organisation(), id.to_string().as_str()))?;
        let Some(mut application) = found.flatten() else { return Ok(()) };
        let read_at = application.updated_at.after(Duration::from_micros(stale.into()));
        application.uid = uid.map(|uid| format!("a{uid}").parse_uid());
        application.throttle_rate = rate;
        application.updated_at = self.now;
        both!(self, update_application(application, read_at)).map(drop)
    }

    async fn create_endpoint(
        &mut self,
        application: u8,
        uid: Option<u8>,
        rate: Option<u16>,
        disabled: bool,
    ) -> Checked {
        let Some(application_id) = self.application(application) else { return Ok(()) };
        let headers = vec![("x-tenant".to_owned(), "nine".to_owned())];
        let endpoint = Endpoint {
            id: EndpointId::new(self.now, self.random()),
            application_id,
            uid: uid.map(|uid| format!("e{uid}").parse_uid()),
            url: EndpointUrl::parse("https://receiver.example/hook").unwrap(),
            description: String::new(),
            disabled: disabled.then_some(DisabledReason::Manual),
            event_types: uid.map(|_| vec![EventTypeName::new("order.paid").unwrap()]),
            channels: None,
            throttle_rate: rate,
            version: 1,
            metadata: BTreeMap::new(),
            headers: EndpointHeaders::new(headers).unwrap(),
            secrets: SecretRing { current: Secret::generate_hmac([7; 32]), old: Vec::new() },
            policy: EndpointPolicy::default(),
            created_at: self.now,
            updated_at: self.now,
        };
        if both!(self, create_endpoint(endpoint))?.is_some() {
            self.endpoints.push((application_id, endpoint.id));
        }
        Ok(())
    }

    async fn change_endpoint(
        &mut self,
        which: u8,
        stale: bool,
        change: impl FnOnce(&mut Endpoint),
    ) -> Checked {
        let Some((application, id)) = self.endpoint(which) else { return Ok(()) };
        let found = both!(self, endpoint(application, id.to_string().as_str()))?;
        let Some(mut endpoint) = found.flatten() else { return Ok(()) };
        let read_at = endpoint.updated_at.after(Duration::from_micros(stale.into()));
        change(&mut endpoint);
        endpoint.updated_at = self.now.max(read_at);
        both!(self, update_endpoint(endpoint, read_at)).map(drop)
    }

    async fn change_event_type(&mut self, name: u8, change: &Change, flag: Option<u8>) -> Checked {
        let name = EventTypeName::new(&format!("order.n{name}")).unwrap();
        let event_type = EventType {
            organisation_id: organisation(),
            name: name.clone(),
            description: "paid".to_owned(),
            archived: matches!(change, Change::Archive),
            deprecated: flag == Some(1),
            schemas: flag.map(|_| "{\"1\":{}}".to_owned()),
            feature_flag: flag.map(|flag| FeatureFlag::new(&format!("f{flag}")).unwrap()),
            group_name: None,
            created_at: self.now,
            updated_at: self.now,
        };
        match change {
            Change::Create => both!(self, create_event_type(event_type)),
            Change::Archive => both!(self, update_event_type(event_type)),
            Change::Delete => both!(self, delete_event_type(&organisation(), &name)),
        }
        .map(drop)
    }

    async fn request(&mut self, step: u8, key: u8, request: u8) -> Checked {
        // Keys of requests and of messages meet sometimes.
        let key = idempotency(key, request);
        match step {
            0 => {
                let takeover_at = self.now.after(Duration::from_secs(30));
                let begun: Option<Begun> = both!(self, begin_request(key, self.now, takeover_at))?;
                drop(begun);
                Ok(())
            }
            1 => {
                let answer = KeptAnswer { status: 201, body: b"{\"id\":1}".to_vec() };
                let expires_at = self.now.after(Duration::from_secs(86_400));
                both!(self, finish_request(key, answer, expires_at)).map(drop)
            }
            _ => both!(self, drop_request(key)).map(drop),
        }
    }

    async fn accept(&mut self, accept: &Accept) -> Checked {
        let Some(application) = self.application(accept.application) else { return Ok(()) };
        let Some(routes) = both!(self, routes(application))?.flatten() else { return Ok(()) };
        let id = MessageId::new(self.now, self.random());
        let kept_for = Duration::from_secs(if accept.short { 3_600 } else { 90 * 86_400 });
        let channels = accept.channel.then(|| Channel::new("eu").unwrap());
        let message = Arc::new(Message {
            id,
            application_id: application,
            event_id: accept.event_id.map(|event| format!("event{event}").parse_uid()),
            event_type: EventTypeName::new("order.paid").unwrap(),
            channels: channels.into_iter().collect(),
            payload: Some(Bytes::from_static(b"{\"total\": 12.50}\0")),
            created_at: self.now,
            expires_at: self.now.after(kept_for),
        });
        let until = self.now.after(LEASE);
        let lease = accept.lease.map(|number| LeaseTerms { worker_id: worker(number), until });
        let start = |endpoint: &Endpoint| match (endpoint.disabled, lease) {
            (Some(_), _) => Start::Held,
            (None, Some(_)) => Start::Leased,
            (None, None) => Start::Due,
        };
        let deliveries = routes
            .endpoints
            .iter()
            .map(|endpoint| NewDelivery { endpoint_id: endpoint.id, start: start(endpoint) });
        let acceptance = Acceptance {
            message: Arc::clone(&message),
            routes_version: routes.version - i64::from(accept.old_routes),
            deliveries: deliveries.collect(),
            idempotency: accept.key.map(|(key, request)| idempotency(key, request)),
            lease,
        };
        let accepted = both!(self, accept(acceptance))?;
        if accepted != Some(Accepted::Committed) {
            return Ok(());
        }
        self.messages.push((application, id));
        let leased = routes.endpoints.iter().filter(|endpoint| start(endpoint) == Start::Leased);
        if let Some(lease) = lease {
            self.out.extend(leased.map(|endpoint| first_lease(endpoint, &message, lease)));
        }
        Ok(())
    }

    async fn claim(
        &mut self,
        number: u8,
        deliveries_max: u8,
        lane_max: u8,
        full: Option<(u8, u8)>,
    ) -> Checked {
        let full = full.and_then(|(which, room)| Some((self.endpoint(which)?.1, room.into())));
        let request = Claim {
            worker_id: worker(number),
            now: self.now,
            lease_for: LEASE,
            deliveries_max: deliveries_max.into(),
            lane_max: lane_max.into(),
            full: full.into_iter().collect(),
            rules: rules(),
        };
        let claimed = both!(self, claim(request))?.unwrap_or_default();
        for lane in claimed.lanes {
            let endpoint = lane.endpoint;
            let leased = lane.deliveries.into_iter();
            self.out.extend(leased.map(|(delivery, _)| (delivery, Arc::clone(&endpoint))));
        }
        Ok(())
    }

    async fn record(&mut self, attempts: &[u8], again: bool, sketch: Option<u8>) -> Checked {
        let count = attempts.len().min(self.out.len());
        let out: Vec<Out> = match again {
            true => self.out[..count].to_vec(),
            false => self.out.drain(..count).collect(),
        };
        let mut records = Vec::new();
        for ((delivery, endpoint), kind) in out.into_iter().zip(attempts) {
            let (outcome, verdict) = attempt(*kind, self.now);
            let record = Record {
                attempt_id: AttemptId::new(self.now, self.random()),
                delivery,
                started_at: self.now.before(Duration::from_millis(60)),
                ended_at: self.now.before(Duration::from_millis(u64::from(*kind) % 7)),
                outcome,
                verdict,
                roll: self.roll(),
            };
            records.push((record, endpoint));
        }
        let sketches = sketch.map(|number| self.sketches(number)).unwrap_or_default();
        let first = records.first().map(|(record, _)| record.delivery.lease.worker_id);
        let batch = RecordBatch {
            worker_id: first.unwrap_or(worker(0)),
            now: self.now,
            rules: rules(),
            records,
            sketches,
        };
        both!(self, record(batch)).map(drop)
    }

    fn sketches(&mut self, number: u8) -> Vec<WindowSketch> {
        let mut sketch = Sketch::default();
        sketch.add(Duration::from_millis(u64::from(number) * 50));
        let one = |scope, secs: i64, p95_ms| WindowSketch {
            scope,
            start: Timestamp::from_secs(self.now.as_secs() / secs * secs),
            sketch: sketch.to_bytes(),
            p95_ms,
        };
        let mut sketches = vec![one(Scope::DeliveryTime, 60, 0)];
        if let Some((_, endpoint)) = self.endpoint(number) {
            let p95_ms = u32::from(number) * 50;
            sketches.push(one(Scope::EndpointLatency(endpoint), 3_600, p95_ms));
        }
        sketches
    }

    /// Until there is nothing left to do: in which order lanes are swept is nobody's promise.
    async fn steps(&mut self) -> Checked {
        for _ in 0..STEPS_MAX {
            if !matches!(both!(self, step(self.now))?, Some(Step::Worked { .. })) {
                return Ok(());
            }
        }
        Err("the steps never end".to_owned())
    }

    async fn replay(
        &mut self,
        endpoint: u8,
        [dead, held]: [bool; 2],
        rate: Option<u8>,
        again: bool,
    ) -> Checked {
        if again && let Some(task) = self.tasks.last().cloned() {
            both!(self, start_task(task))?;
            return both!(self, task(task.id)).map(drop);
        }
        let Some((application_id, endpoint_id)) = self.endpoint(endpoint) else { return Ok(()) };
        let states = [(dead || !held, DeliveryState::DeadLetter), (held, DeliveryState::Held)];
        let task = Task {
            id: self.task_id(),
            application_id,
            endpoint_id,
            since: self.now.before(Duration::from_secs(86_400)),
            until: self.now,
            states: states.into_iter().filter(|(on, _)| *on).map(|(_, state)| state).collect(),
            rate_per_second: rate.map(u32::from),
            status: TaskStatus::Running,
            replayed: 0,
            skipped: 0,
            cursor: None,
            created_at: self.now,
            updated_at: self.now,
        };
        both!(self, start_task(task))?;
        both!(self, task(task.id))?;
        self.tasks.push(task);
        Ok(())
    }
}

/// Names of all kinds out of our own texts.
trait ParseUid {
    fn parse_uid<T: Name>(&self) -> T;
}

impl ParseUid for String {
    fn parse_uid<T: Name>(&self) -> T {
        T::of(self)
    }
}

trait Name {
    fn of(text: &str) -> Self;
}

macro_rules! names {
    ($($name:ident),+) => {
        $(impl Name for posthaste_core::event::$name {
            fn of(text: &str) -> Self {
                Self::new(text).unwrap()
            }
        })+
    };
}
names!(ApplicationUid, EndpointUid, EventId);

fn idempotency(key: u8, request: u8) -> IdempotencyKey {
    IdempotencyKey { key_hash: [key; 32], request_hash: [request; 32] }
}

/// A delivery that the accepting process sends from memory.
fn first_lease(endpoint: &Arc<Endpoint>, message: &Message, lease: LeaseTerms) -> Out {
    let delivery = LeasedDelivery {
        key: DeliveryKey { endpoint_id: endpoint.id, message_id: message.id },
        application_id: message.application_id,
        lease: Lease { worker_id: lease.worker_id, number: 1, until: lease.until },
        attempt: 1,
        plan_attempt: 1,
        class: Class::First,
        trigger: Trigger::Scheduled,
        planned_at: None,
        accepted_at: message.created_at,
        probe: false,
    };
    (delivery, Arc::clone(endpoint))
}

/// What an attempt of this kind brings.
fn attempt(kind: u8, now: Timestamp) -> (Outcome, Verdict) {
    let later = Verdict::RetryAt(now.after(Duration::from_millis(u64::from(kind) * 97)));
    let answer = |status, retry_after: Option<&str>| {
        Answer::Response(Response {
            status,
            retry_after: retry_after.map(str::to_owned),
            body: Bytes::from_static(b"\xFFbody"),
            body_cut: kind.is_multiple_of(2),
        })
    };
    let timeout = Answer::Failure(Failure {
        kind: FailureKind::Timeout,
        phase: Phase::Headers,
        detail: "15 s".to_owned(),
    });
    let (answer, verdict) = match kind % 10 {
        0..4 => (answer(200, None), Verdict::Delivered),
        4..6 => (answer(503, None), later),
        6 => (timeout, later),
        7 => (answer(429, Some("7")), later),
        8 => (answer(422, None), Verdict::Dead(Cause::Final(OutcomeClass::Status(422)))),
        _ if kind % 50 == 9 => (answer(410, None), Verdict::Dead(Cause::Gone)),
        _ => (answer(500, None), Verdict::Dead(Cause::Exhausted(OutcomeClass::Status(500)))),
    };
    let timing = Timing {
        dns: (kind.is_multiple_of(3)).then_some(Duration::from_millis(3)),
        total: Duration::from_millis(u64::from(kind) * 20),
        ..Timing::default()
    };
    let remote = (kind.is_multiple_of(2)).then(|| "192.0.2.7".parse().unwrap());
    (Outcome { answer, timing, remote }, verdict)
}
