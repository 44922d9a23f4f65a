//! One attempt, as a pipeline: sign, send, judge, record. A retry is the same with a higher number.

use crate::EngineSettings;
use crate::courier::{Courier, Errand, Target};
use crate::lanes::Lanes;
use crate::metrics::Metrics;
use crate::recorder::Recorder;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use http::{HeaderMap, Method};
use posthaste_core::breaker;
use posthaste_core::delivery::{Record, Trigger, Verdict};
use posthaste_core::endpoint::Endpoint;
use posthaste_core::id::{AttemptId, EndpointId};
use posthaste_core::outcome::{Answer, Failure, FailureKind, Outcome, Phase, Timing};
use posthaste_core::retry::{Judged, RetryPolicy, judge};
use posthaste_core::time::{Clock, Dice, Timestamp};
use posthaste_queue::Job;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Endpoints whose URL and headers are kept ready for sending.
const PREPARED_MAX: usize = 10_000;

/// Under which names id, timestamp and signature are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SigningHeaders {
    #[default]
    Webhook,
    Svix,
    Both,
}

/// Carries jobs, each in a task of its own that goes on with the next job of its turn.
pub struct Carrier {
    courier: Courier,
    recorder: Mutex<Option<Recorder>>,
    clock: Arc<dyn Clock>,
    dice: Arc<dyn Dice>,
    metrics: Arc<Metrics>,
    policy: Policy,
    prepared: Mutex<HashMap<EndpointId, Arc<Prepared>>>,
    running: AtomicUsize,
    idle: Notify,
}

/// The settings an attempt needs.
struct Policy {
    retry: posthaste_core::retry::RetryPolicy,
    final_statuses: Vec<u16>,
    timeout: Duration,
    signing: SigningHeaders,
}

/// What of an endpoint does not change from attempt to attempt.
struct Prepared {
    /// The endpoint's version.
    updated_at: Timestamp,
    target: Target,
    headers: HeaderMap,
}

impl Carrier {
    pub(crate) fn new(
        courier: Courier,
        recorder: Recorder,
        clock: Arc<dyn Clock>,
        dice: Arc<dyn Dice>,
        metrics: Arc<Metrics>,
        settings: &EngineSettings,
    ) -> Self {
        let policy = Policy {
            retry: settings.retry.clone(),
            final_statuses: settings.final_statuses.clone(),
            timeout: settings.timeout,
            signing: settings.signing,
        };
        Self {
            courier,
            recorder: Mutex::new(Some(recorder)),
            clock,
            dice,
            metrics,
            policy,
            prepared: Mutex::default(),
            running: AtomicUsize::new(0),
            idle: Notify::new(),
        }
    }

    /// Carries `job`, then whatever `lanes` has next for this task.
    pub async fn carry(self: Arc<Self>, lanes: Arc<Lanes>, job: Job) {
        let _running = Running::new(&self);
        let recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Without a recorder the engine has stopped; the lease goes back with the worker's others.
        let Some(recorder) = recorder else { return };
        let mut next = Some(job);
        while let Some(job) = next {
            let endpoint = job.endpoint.clone();
            let bytes = job.message.payload.as_ref().map_or(0, bytes::Bytes::len);
            let record = self.attempt(job).await;
            let weight = breaker::weigh(record.outcome.class());
            let took = record.outcome.timing.total;
            recorder.record(record, endpoint.clone()).await;
            next = lanes.finished(endpoint.id, weight, took, bytes);
        }
    }

    /// Returns when no attempt is running.
    pub async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.running.load(Ordering::Acquire) == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Takes no more records, so that the recorder ends when it has written all it has.
    pub fn close(&self) {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    async fn attempt(&self, job: Job) -> Record {
        let started_at = self.clock.now();
        let outcome = self.send(&job, started_at).await;
        let ended_at = self.clock.now();
        let verdict = self.judge(&job, &outcome, ended_at);
        let mut random = [0; 10];
        self.dice.fill(&mut random);
        let record = Record {
            attempt_id: AttemptId::new(started_at, random),
            delivery: job.delivery,
            started_at,
            ended_at,
            outcome,
            verdict,
            roll: self.dice.roll(),
        };
        self.metrics.attempted(&record);
        log(&record);
        record
    }

    async fn send(&self, job: &Job, now: Timestamp) -> Outcome {
        let scheduled = job.delivery.trigger == Trigger::Scheduled;
        if scheduled && self.retry(job).is_overdrawn(job.delivery.plan_attempt) {
            return refused("its attempts are used up, and too many ended with their worker");
        }
        let prepared = self.prepare(&job.endpoint);
        let Some(payload) = job.message.payload.clone() else {
            return refused("the payload is gone");
        };
        let id = job.message.id.to_string();
        let signature = job.endpoint.secrets.sign_content(&id, now.as_secs(), &payload);
        let mut headers = prepared.headers.clone();
        if sign(&mut headers, self.policy.signing, &id, now, &signature).is_none() {
            return refused("the signature does not fit a header");
        }
        let timeout = job.endpoint.timeout(self.policy.timeout);
        let target = &prepared.target;
        let errand = Errand { target, method: Method::POST, headers, body: payload, timeout };
        self.courier.send(&errand).await
    }

    fn retry<'a>(&'a self, job: &'a Job) -> &'a RetryPolicy {
        job.endpoint.policy.retry.as_ref().unwrap_or(&self.policy.retry)
    }

    fn judge(&self, job: &Job, outcome: &Outcome, now: Timestamp) -> Verdict {
        let own = &job.endpoint.policy;
        let statuses = [self.policy.final_statuses.as_slice(), own.final_statuses.as_slice()];
        let judged = Judged {
            policy: self.retry(job),
            final_statuses: &statuses.concat(),
            plan_attempt: job.delivery.plan_attempt,
            manual: job.delivery.trigger == Trigger::Manual,
            planned_at: job.delivery.planned_at,
        };
        judge(outcome, judged, now, self.dice.roll())
    }

    fn prepare(&self, endpoint: &Endpoint) -> Arc<Prepared> {
        let mut all = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(prepared) = all.get(&endpoint.id)
            && prepared.updated_at == endpoint.updated_at
        {
            return prepared.clone();
        }
        if all.len() >= PREPARED_MAX {
            all.clear();
        }
        let prepared = Arc::new(Prepared::new(endpoint));
        all.insert(endpoint.id, prepared.clone());
        prepared
    }
}

impl Prepared {
    fn new(endpoint: &Endpoint) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // Checked when they were configured, so nothing is skipped here.
        for (name, value) in endpoint.headers.iter() {
            if let (Ok(name), Ok(value)) =
                (HeaderName::try_from(name), HeaderValue::try_from(value))
            {
                headers.insert(name, value);
            }
        }
        let user_agent = endpoint.policy.user_agent.as_deref();
        if let Some(Ok(value)) = user_agent.map(HeaderValue::try_from) {
            headers.insert(USER_AGENT, value);
        }
        let target = Target::from(&endpoint.url);
        Self { updated_at: endpoint.updated_at, target, headers }
    }
}

/// `None` when a value does not fit a header, which none of ours does.
fn sign(
    headers: &mut HeaderMap,
    names: SigningHeaders,
    id: &str,
    now: Timestamp,
    signature: &str,
) -> Option<()> {
    let id = HeaderValue::try_from(id).ok()?;
    let timestamp = HeaderValue::from(now.as_secs());
    let signature = HeaderValue::try_from(signature).ok()?;
    if names != SigningHeaders::Svix {
        headers.insert(HeaderName::from_static("webhook-id"), id.clone());
        headers.insert(HeaderName::from_static("webhook-timestamp"), timestamp.clone());
        headers.insert(HeaderName::from_static("webhook-signature"), signature.clone());
    }
    if names != SigningHeaders::Webhook {
        headers.insert(HeaderName::from_static("svix-id"), id);
        headers.insert(HeaderName::from_static("svix-timestamp"), timestamp);
        headers.insert(HeaderName::from_static("svix-signature"), signature);
    }
    Some(())
}

fn refused(why: &str) -> Outcome {
    let failure = Failure { kind: FailureKind::Local, phase: Phase::Send, detail: why.to_owned() };
    Outcome { answer: Answer::Failure(failure), timing: Timing::default(), remote: None }
}

fn log(record: &Record) {
    let delivery = &record.delivery;
    tracing::info!(
        message_id = %delivery.key.message_id,
        endpoint_id = %delivery.key.endpoint_id,
        application_id = %delivery.application_id,
        attempt_id = %record.attempt_id,
        attempt = delivery.attempt,
        outcome = %record.outcome.class(),
        verdict = record.verdict.as_str(),
        // Rounded to microseconds, so that no tail of binary fractions is shown.
        latency_ms = (record.outcome.timing.total.as_secs_f64() * 1e6).round() / 1e3,
        "delivery.attempted"
    );
}

/// Counts a running task, also when it is dropped half-way.
struct Running<'a>(&'a Carrier);

impl<'a> Running<'a> {
    fn new(carrier: &'a Carrier) -> Self {
        carrier.running.fetch_add(1, Ordering::AcqRel);
        Self(carrier)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}
