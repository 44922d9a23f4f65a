//! A server on a real socket with a real store, and a client of a few lines.

use http::Method;
use posthaste_core::breaker::BreakerPolicy;
use posthaste_core::delivery::{Cause, LeasedDelivery, Record, Verdict};
use posthaste_core::event::OrganisationId;
use posthaste_core::id::{AttemptId, WorkerId};
use posthaste_core::lane::LaneRules;
use posthaste_core::outcome::{Answer, Outcome, OutcomeClass, Response, Timing};
use posthaste_core::time::{Clock, Dice as _, Timestamp};
use posthaste_queue::Queue;
use posthaste_server::auth::{self, TokenKeys};
use posthaste_server::{Api, ApiSettings, ServeLimits, router, serve};
use posthaste_store::Store;
use posthaste_store::outbox::{Claim, RecordBatch};
use posthaste_store::sqlite::{SqliteOptions, SqliteStore};
use posthaste_testkit::{PATIENCE, TestDice};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub const SECRET: &[u8] = b"a secret for tests only";

/// A clock that moves on by a millisecond whenever somebody looks, so that things made one after
/// the other have ids in that order.
pub struct Ticking(AtomicI64);

impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.fetch_add(1, Ordering::SeqCst))
    }
}

impl Ticking {
    pub fn advance(&self, by: Duration) {
        let millis = i64::try_from(by.as_millis()).unwrap();
        self.0.fetch_add(millis, Ordering::SeqCst);
    }
}

pub struct Server {
    pub address: SocketAddr,
    pub store: Arc<dyn Store>,
    pub queue: Arc<Queue>,
    pub clock: Arc<Ticking>,
    pub token: String,
    stop: Option<oneshot::Sender<()>>,
    pub running: JoinHandle<std::io::Result<()>>,
    /// Removed when the test ends.
    _folder: tempfile::TempDir,
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.status, self.text()))
    }

    /// The JSON, after a look at the status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        if self.body.is_empty() { Value::Null } else { self.json() }
    }
}

impl Server {
    pub async fn start() -> Self {
        Self::start_with(|_| {}, ServeLimits::default()).await
    }

    pub async fn start_with(adapt: impl FnOnce(&mut ApiSettings), limits: ServeLimits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(Ticking(AtomicI64::new(1_780_000_000_000)));
        let path = folder.path().join("posthaste.db");
        let store = SqliteStore::open(&path, SqliteOptions::default(), clock.now()).await.unwrap();
        let store: Arc<dyn Store> = Arc::new(store);
        let keys = TokenKeys::new(&[SECRET]).unwrap();
        let mut settings = ApiSettings::new(keys, "http://hooks.test");
        adapt(&mut settings);
        let queue = Arc::new(Queue::new(store.clone()));
        let api = Api {
            store: store.clone(),
            queue: queue.clone(),
            clock: clock.clone(),
            dice: Arc::new(TestDice::seeded(7)),
            metrics: Arc::new(|| "posthaste_of_the_process 1\n".to_owned()),
            settings,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(serve(listener, router(api), limits, async {
            let _ = stopped.await;
        }));
        let token = token_of("org_tests");
        let stop = Some(stop);
        Self { address, store, queue, clock, token, stop, running, _folder: folder }
    }

    pub fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    pub async fn call(&self, method: Method, path: &str, body: &str) -> Reply {
        self.call_as(&self.token, method, path, &[], body).await
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.call(Method::GET, path, "").await
    }

    pub async fn post(&self, path: &str, body: &str) -> Reply {
        self.call(Method::POST, path, body).await
    }

    pub async fn call_as(
        &self,
        token: &str,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Reply {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
        if !token.is_empty() {
            head += &format!("authorization: Bearer {token}\r\n");
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            head += &format!("content-length: {}\r\n", body.len());
        }
        self.raw(format!("{head}\r\n{body}").as_bytes()).await
    }

    /// Sends these bytes and reads until the server closes.
    pub async fn raw(&self, bytes: &[u8]) -> Reply {
        let exchange = async {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            // The server may answer and close before it has read all.
            let _ = stream.write_all(bytes).await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            answer
        };
        let answer = tokio::time::timeout(PATIENCE, exchange).await.unwrap();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no head: {}", String::from_utf8_lossy(&answer)));
        let head = String::from_utf8(answer[..end].to_vec()).unwrap().to_ascii_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Reply { status, head, body: answer[end + 4..].to_vec() }
    }

    /// An application's id.
    pub async fn application(&self, name: &str) -> String {
        let body = format!(r#"{{"name":"{name}"}}"#);
        id_of(&self.post("/api/v1/app", &body).await.expect(201))
    }

    /// An endpoint's id.
    pub async fn endpoint(&self, application: &str) -> String {
        let path = format!("/api/v1/app/{application}/endpoint");
        id_of(&self.post(&path, r#"{"url":"http://127.0.0.1:9/hook?key=1"}"#).await.expect(201))
    }

    /// A message's id.
    pub async fn message(&self, application: &str) -> String {
        let path = format!("/api/v1/app/{application}/msg");
        let body = r#"{"eventType":"user.signup","payload":{"a":1}}"#;
        id_of(&self.post(&path, body).await.expect(202))
    }

    /// Does what a worker does: claims what is due, and records that it was answered with `status`.
    /// Returns how many attempts that were.
    pub async fn work(&self, status: u16, body: &[u8]) -> usize {
        let worker_id = WorkerId::new(self.clock.now(), [1; 10]);
        let claim = Claim {
            worker_id,
            now: self.clock.now(),
            lease_for: Duration::from_secs(30),
            deliveries_max: 100,
            lane_max: 100,
            full: Vec::new(),
            rules: RULES,
        };
        self.store.heartbeat(worker_id, self.clock.now()).await.unwrap();
        let claimed = self.store.claim(claim).await.unwrap();
        let mut records = Vec::new();
        for lane in claimed.lanes {
            for (delivery, _) in lane.deliveries {
                records.push((self.record(delivery, status, body), lane.endpoint.clone()));
            }
        }
        let count = records.len();
        let now = self.clock.now();
        let batch = RecordBatch { worker_id, now, rules: RULES, records, sketches: Vec::new() };
        let recorded = self.store.record(batch).await.unwrap();
        assert!(recorded.stale.is_empty());
        count
    }

    fn record(&self, delivery: LeasedDelivery, status: u16, body: &[u8]) -> Record {
        let started_at = self.clock.now();
        let mut random = [0; 10];
        TestDice::seeded(started_at.as_micros().unsigned_abs()).fill(&mut random);
        let response =
            Response { status, body: bytes::Bytes::copy_from_slice(body), ..Response::default() };
        let timing = Timing { total: Duration::from_millis(12), ..Timing::default() };
        let verdict = match status {
            200..=299 => Verdict::Delivered,
            400..=499 => Verdict::Dead(Cause::Final(OutcomeClass::Status(status))),
            _ => Verdict::RetryAt(started_at.after(Duration::from_secs(60))),
        };
        Record {
            attempt_id: AttemptId::new(started_at, random),
            delivery,
            started_at,
            ended_at: self.clock.now(),
            outcome: Outcome { answer: Answer::Response(response), timing, remote: None },
            verdict,
            roll: 0,
        }
    }
}

const RULES: LaneRules = LaneRules {
    breaker: BreakerPolicy {
        failure_threshold: 10,
        cooldown: Duration::from_secs(5),
        cooldown_max: Duration::from_secs(3_600),
    },
    disable_after: None,
    in_flight_max: 100,
};

pub fn keys() -> TokenKeys {
    TokenKeys::new(&[SECRET]).unwrap()
}

pub fn token_of(organisation: &str) -> String {
    let organisation = OrganisationId::new(organisation).unwrap();
    let now = Timestamp::from_millis(1_780_000_000_000);
    auth::mint_organisation(&keys(), &organisation, now, auth::ORGANISATION_TOKEN_LIVES)
}

pub fn id_of(object: &Value) -> String {
    object["id"].as_str().unwrap().to_owned()
}

pub fn ids_of(page: &Value) -> Vec<String> {
    page["data"].as_array().unwrap().iter().map(id_of).collect()
}
