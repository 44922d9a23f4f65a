//! Measures how many messages a second a store accepts and records on its own, with 1 KiB payloads:
//! `cargo run --release -p posthaste-store --example store_rate [SECONDS [URL]]`. Without the URL
//! of an empty PostgreSQL database it is SQLite.
//!
//! Two runs: deliveries leased from the start (what a healthy server does), and with a claim
//! between. The processor time per message is what decides, because HTTP needs the rest; that of
//! the whole machine has the database's server in it, and whatever else runs.

#![expect(clippy::disallowed_methods, reason = "a measurement needs the real clock")]

use bytes::Bytes;
use posthaste_core::breaker::BreakerPolicy;
use posthaste_core::delivery::{
    Class, DeliveryKey, Lease, LeasedDelivery, Record, Trigger, Verdict,
};
use posthaste_core::endpoint::{Application, Endpoint, EndpointPolicy, EndpointUrl};
use posthaste_core::event::{EventTypeName, OrganisationId};
use posthaste_core::id::{ApplicationId, AttemptId, EndpointId, MessageId, WorkerId};
use posthaste_core::lane::LaneRules;
use posthaste_core::message::Message;
use posthaste_core::outcome::{Answer, Outcome, Response, Timing};
use posthaste_core::sign::{Secret, SecretRing};
use posthaste_core::time::Timestamp;
use posthaste_store::outbox::{
    Acceptance, Accepted, Claim, LeaseTerms, NewDelivery, RecordBatch, Start,
};
use posthaste_store::{PostgresOptions, PostgresStore, SqliteOptions, SqliteStore, Store};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;

const PUBLISHERS: usize = 64;
const ENDPOINTS: u64 = 10;
const BATCH: usize = 256;
const WORKER: WorkerId = WorkerId::from_bytes([1; 16]);

type Outcomes = Result<(), Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcomes {
    let seconds = std::env::args().nth(1).map_or(Ok(5), |text| text.parse())?;
    let url = std::env::args().nth(2);
    for leased in [true, false] {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("posthaste.db");
        let store: Arc<dyn Store> = match &url {
            Some(url) => {
                Arc::new(PostgresStore::open(url, PostgresOptions::default(), now()).await?)
            }
            None => Arc::new(SqliteStore::open(&path, SqliteOptions::default(), now()).await?),
        };
        let bench = Arc::new(Bench::new(store, leased).await?);
        let (started, cpu, machine) = (Instant::now(), cpu_time()?, machine_time()?);
        let count = bench.run(Duration::from_secs(seconds)).await?;
        let (wall, cpu) = (started.elapsed(), cpu_time()?.saturating_sub(cpu));
        let machine = machine_time()?.saturating_sub(machine);
        println!(
            "{}: {:.0} messages/s, {:.1} us of processor time each, {:.1} of the whole machine's \
             ({count} in {wall:.1?})",
            if leased { "leased from the start" } else { "with a claim" },
            count as f64 / wall.as_secs_f64(),
            cpu.as_micros() as f64 / count as f64,
            machine.as_micros() as f64 / count as f64,
        );
        bench.store.close().await?;
    }
    Ok(())
}

struct Bench {
    store: Arc<dyn Store>,
    application: ApplicationId,
    endpoints: Vec<Arc<Endpoint>>,
    leased: bool,
    number: AtomicU64,
    accepted: AtomicU64,
    recorded: AtomicU64,
}

impl Bench {
    async fn new(
        store: Arc<dyn Store>,
        leased: bool,
    ) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let application = Application {
            id: ApplicationId::new(now(), random(0)),
            organisation_id: OrganisationId::new("org_bench").ok_or("an organisation")?,
            uid: None,
            name: "bench".to_owned(),
            throttle_rate: None,
            metadata: Default::default(),
            created_at: now(),
            updated_at: now(),
        };
        store.create_application(application.clone()).await?;
        let mut endpoints = Vec::new();
        for number in 0..ENDPOINTS {
            let endpoint = Endpoint {
                id: EndpointId::new(now(), random(number)),
                application_id: application.id,
                uid: None,
                url: EndpointUrl::parse("http://127.0.0.1:9/hook")?,
                description: String::new(),
                disabled: None,
                event_types: None,
                channels: None,
                throttle_rate: None,
                version: 1,
                metadata: Default::default(),
                headers: Default::default(),
                secrets: SecretRing { current: Secret::generate_hmac([1; 32]), old: Vec::new() },
                policy: EndpointPolicy::default(),
                created_at: now(),
                updated_at: now(),
            };
            store.create_endpoint(endpoint.clone()).await?;
            endpoints.push(Arc::new(endpoint));
        }
        Ok(Self {
            store,
            application: application.id,
            endpoints,
            leased,
            number: AtomicU64::new(ENDPOINTS),
            accepted: AtomicU64::new(0),
            recorded: AtomicU64::new(0),
        })
    }

    /// Publishes for so long, delivers all of it, and gives how many that were.
    async fn run(self: &Arc<Self>, span: Duration) -> Result<u64, Box<dyn Error + Send + Sync>> {
        let (hand_over, mut handed_over) = mpsc::channel::<(LeasedDelivery, Arc<Endpoint>)>(4_096);
        let version = self.store.routes(self.application).await?.ok_or("routes")?.version;
        let until = Instant::now() + span;
        let mut publishers = tokio::task::JoinSet::<Outcomes>::new();
        for _ in 0..PUBLISHERS {
            let (bench, hand_over) = (Arc::clone(self), hand_over.clone());
            publishers.spawn(async move {
                while Instant::now() < until {
                    bench.publish(version, &hand_over).await?;
                }
                Ok(())
            });
        }
        drop(hand_over);
        let mut batch = Vec::with_capacity(BATCH);
        if self.leased {
            while handed_over.recv_many(&mut batch, BATCH).await > 0 {
                self.record(batch.drain(..)).await?;
            }
        } else {
            while publishers.try_join_next().transpose()?.is_some()
                || !publishers.is_empty()
                || self.recorded.load(Ordering::SeqCst) < self.accepted.load(Ordering::SeqCst)
            {
                self.claim(&mut batch).await?;
                self.record(batch.drain(..)).await?;
            }
        }
        while let Some(ended) = publishers.join_next().await {
            ended??;
        }
        Ok(self.recorded.load(Ordering::SeqCst))
    }

    async fn publish(
        &self,
        routes_version: i64,
        hand_over: &mpsc::Sender<(LeasedDelivery, Arc<Endpoint>)>,
    ) -> Outcomes {
        let number = self.number.fetch_add(1, Ordering::SeqCst);
        let endpoint = &self.endpoints[usize::try_from(number % ENDPOINTS)?];
        let created_at = now();
        let message = Arc::new(Message {
            id: MessageId::new(created_at, random(number)),
            application_id: self.application,
            event_id: None,
            event_type: EventTypeName::new("bench")?,
            channels: Vec::new(),
            payload: Some(Bytes::from_static(&[b'x'; 1_024])),
            created_at,
            expires_at: created_at.after(Duration::from_secs(90 * 86_400)),
        });
        let start = if self.leased { Start::Leased } else { Start::Due };
        let until = created_at.after(Duration::from_secs(30));
        let acceptance = Acceptance {
            message: Arc::clone(&message),
            routes_version,
            deliveries: vec![NewDelivery { endpoint_id: endpoint.id, start }],
            idempotency: None,
            lease: Some(LeaseTerms { worker_id: WORKER, until }),
        };
        if self.store.accept(acceptance).await? != Accepted::Committed {
            return Err("a message was not accepted".into());
        }
        self.accepted.fetch_add(1, Ordering::SeqCst);
        if self.leased {
            let delivery = LeasedDelivery {
                key: DeliveryKey { endpoint_id: endpoint.id, message_id: message.id },
                application_id: self.application,
                lease: Lease { worker_id: WORKER, number: 1, until },
                attempt: 1,
                plan_attempt: 1,
                class: Class::First,
                trigger: Trigger::Scheduled,
                planned_at: None,
                accepted_at: created_at,
                probe: false,
            };
            hand_over.send((delivery, Arc::clone(endpoint))).await?;
        }
        Ok(())
    }

    async fn claim(&self, batch: &mut Vec<(LeasedDelivery, Arc<Endpoint>)>) -> Outcomes {
        let claim = Claim {
            worker_id: WORKER,
            now: now(),
            lease_for: Duration::from_secs(30),
            deliveries_max: BATCH,
            lane_max: BATCH,
            full: Vec::new(),
            rules: LaneRules { breaker: BreakerPolicy::default(), ..LaneRules::default() },
        };
        for lane in self.store.claim(claim).await?.lanes {
            for (delivery, _) in lane.deliveries {
                batch.push((delivery, Arc::clone(&lane.endpoint)));
            }
        }
        Ok(())
    }

    async fn record(
        &self,
        leased: impl Iterator<Item = (LeasedDelivery, Arc<Endpoint>)>,
    ) -> Outcomes {
        let at = now();
        let records: Vec<_> = leased
            .map(|(delivery, endpoint)| {
                let number = self.number.fetch_add(1, Ordering::SeqCst);
                let response = Response { status: 200, ..Response::default() };
                let timing = Timing { total: Duration::from_millis(1), ..Timing::default() };
                let record = Record {
                    attempt_id: AttemptId::new(at, random(number)),
                    delivery,
                    started_at: at,
                    ended_at: at,
                    outcome: Outcome {
                        answer: Answer::Response(response),
                        timing,
                        remote: Some([127, 0, 0, 1].into()),
                    },
                    verdict: Verdict::Delivered,
                    roll: number,
                };
                (record, endpoint)
            })
            .collect();
        let count = records.len() as u64;
        let batch = RecordBatch {
            worker_id: WORKER,
            now: at,
            rules: LaneRules::default(),
            records,
            sketches: Vec::new(),
        };
        if !self.store.record(batch).await?.stale.is_empty() {
            return Err("a record was stale".into());
        }
        self.recorded.fetch_add(count, Ordering::SeqCst);
        Ok(())
    }
}

fn random(number: u64) -> [u8; 10] {
    let mut random = [0; 10];
    random[2..].copy_from_slice(&number.to_be_bytes());
    random
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::default().after(since)
}

/// Processor time of this process so far, in ticks of 10 ms (Linux).
fn cpu_time() -> Result<Duration, Box<dyn Error + Send + Sync>> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let fields = text.rsplit_once(") ").ok_or("a name in /proc/self/stat")?.1;
    let tick = |index: usize| -> Result<u64, Box<dyn Error + Send + Sync>> {
        Ok(fields.split(' ').nth(index).ok_or("a field of /proc/self/stat")?.parse()?)
    };
    Ok(Duration::from_millis((tick(11)? + tick(12)?) * 10))
}

/// Processor time of everybody so far (Linux): user, nice, system, interrupts.
fn machine_time() -> Result<Duration, Box<dyn Error + Send + Sync>> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let fields: Vec<&str> = text.lines().next().unwrap_or_default().split_whitespace().collect();
    let mut ticks = 0;
    for index in [1, 2, 3, 6, 7] {
        ticks += fields.get(index).ok_or("a field of /proc/stat")?.parse::<u64>()?;
    }
    Ok(Duration::from_millis(ticks * 10))
}
