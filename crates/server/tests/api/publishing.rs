//! Publishing: exact bytes, limits, repetition, and the hand-over to the worker.

use crate::common::{Reply, Server, id_of};
use http::Method;
use posthaste_core::endpoint::Endpoint;
use posthaste_core::id::{EndpointId, MessageId, WorkerId};
use posthaste_core::time::Timestamp;
use posthaste_queue::{FastPath, Job, Room};
use posthaste_store::outbox::LeaseTerms;
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

#[tokio::test]
async fn f005_the_payload_comes_back_byte_for_byte() {
    let server = Server::start().await;
    let application = server.application("App").await;
    let path = format!("/api/v1/app/{application}/msg");
    for payload in [
        r#"{"b": 1, "a": "é 😊", "n": 1.0}"#,
        r#"{"z":1,"a":2,"m":{"y":1.0,"b":9007199254740993},"a2":1e2,"dup":1,"dup":2}"#,
    ] {
        let body = format!(r#"{{"eventType": "a", "payload": {payload} }}"#);
        let created = server.post(&path, &body).await;
        assert_eq!(created.status, 202);
        assert!(created.text().contains(&format!(r#""payload":{payload},"#)), "{}", created.text());
        let read = server.get(&format!("{path}/{}", id_of(&created.json()))).await;
        assert_eq!(read.text(), created.text());
        let brief = server.post(&format!("{path}?with_content=false"), &body).await.expect(202);
        assert_eq!(brief["payload"], json!({}));
    }
}

#[tokio::test]
async fn f101_the_largest_payload_is_accepted_and_one_byte_more_is_not() {
    let server = Server::start().await;
    let application = server.application("App").await;
    let path = format!("/api/v1/app/{application}/msg?with_content=false");
    let limit = posthaste_core::limits::PAYLOAD_BYTES_MAX;
    for (bytes, status) in [(limit, 202), (limit + 1, 413), (2 * limit, 413), (4 * limit, 413)] {
        let filler = "x".repeat(bytes - r#"{"x":""}"#.len());
        let body = format!(r#"{{"eventType":"a","payload":{{"x":"{filler}"}}}}"#);
        let reply = server.post(&path, &body).await;
        assert_eq!(reply.status, status, "{bytes} bytes: {}", reply.text());
        if status == 413 {
            let error = reply.json();
            assert_eq!(error["code"], "payload_too_large");
            assert!(error["detail"].as_str().unwrap().contains("bytes"), "{error}");
        }
    }
}

#[tokio::test]
async fn an_event_id_is_taken_once_per_application() {
    let server = Server::start().await;
    let (one, other) = (server.application("1").await, server.application("2").await);
    let body = r#"{"eventType":"a","eventId":"e-1","payload":{}}"#;
    let path = format!("/api/v1/app/{one}/msg");
    let created = server.post(&path, body).await.expect(202);
    assert_eq!(server.post(&path, body).await.expect(409)["code"], "conflict");
    assert_eq!(server.get(&format!("{path}/e-1")).await.expect(200), created);
    server.post(&format!("/api/v1/app/{other}/msg"), body).await.expect(202);
}

#[tokio::test]
async fn a_message_may_bring_its_application() {
    let server = Server::start().await;
    let body = r#"{"eventType":"a","payload":{},"application":{"name":"N","uid":"new"}}"#;
    server.post("/api/v1/app/new/msg", body).await.expect(202);
    server.post("/api/v1/app/new/msg", body).await.expect(202);
    assert_eq!(server.get("/api/v1/app/new").await.expect(200)["name"], "N");
    let refused = server.post("/api/v1/app/newer/msg", body).await.expect(422);
    assert_eq!(refused["detail"][0]["type"], "application_uid_mismatch");
}

#[tokio::test]
async fn f048_the_same_key_publishes_once() {
    let server = Server::start().await;
    let application = server.application("App").await;
    let path = format!("/api/v1/app/{application}/msg");
    let body = r#"{"eventType":"a","payload":{"n": 1.0}}"#;
    let first = with_key(&server, &path, "k1", body).await;
    assert_eq!(first.status, 202);
    // A slash at the end is no difference.
    let second = with_key(&server, &format!("{path}/"), "k1", body).await;
    assert_eq!((second.status, second.text()), (202, first.text()));
    let other = r#"{"eventType":"a","payload":{"n": 2.0}}"#;
    let refused = with_key(&server, &path, "k1", other).await.expect(422);
    assert_eq!(refused["detail"][0]["loc"], json!(["header", "idempotency-key"]));

    let tries = (0..8).map(|_| with_key(&server, &path, "k2", body));
    let mut replies = Vec::new();
    for reply in join_all(tries).await {
        replies.push(reply.expect(202));
    }
    assert!(replies.iter().all(|reply| *reply == replies[0]), "{replies:?}");
    let listed = server.get(&path).await.expect(200);
    assert_eq!(listed["data"].as_array().unwrap().len(), 2);
    // Another organisation's key of the same name is another key.
    let long = "k".repeat(257);
    with_key(&server, &path, &long, body).await.expect(422);
    let (one, two) =
        (with_key(&server, &path, "", body).await, with_key(&server, &path, "", body).await);
    assert_ne!(one.expect(202)["id"], two.expect(202)["id"], "an empty key is no key");
}

#[tokio::test]
async fn the_same_key_creates_once() {
    let server = Server::start().await;
    let body = r#"{"name":"App"}"#;
    let tries = (0..6).map(|_| with_key(&server, "/api/v1/app", "k1", body));
    let mut ids = BTreeSet::new();
    for reply in join_all(tries).await {
        ids.insert(id_of(&reply.expect(201)));
    }
    assert_eq!(ids.len(), 1);
    with_key(&server, "/api/v1/app", "k1", r#"{"name":"Other"}"#).await.expect(422);
    // What failed may be made again, with another body too.
    with_key(&server, "/api/v1/app", "k2", "{}").await.expect(422);
    with_key(&server, "/api/v1/app", "k2", body).await.expect(201);
}

/// A worker that takes everything and remembers what it was given.
#[derive(Default)]
struct Taker {
    reserved: AtomicUsize,
    released: AtomicUsize,
    taken: Mutex<Vec<MessageId>>,
}

#[async_trait::async_trait]
impl FastPath for Taker {
    fn terms(&self) -> Option<LeaseTerms> {
        let worker_id = WorkerId::from_bytes([7; 16]);
        Some(LeaseTerms { worker_id, until: Timestamp::MAX })
    }

    fn reserve(&self, endpoint_id: EndpointId, bytes: usize) -> Option<Room> {
        self.reserved.fetch_add(1, Ordering::SeqCst);
        Some(Room { endpoint_id, bytes })
    }

    fn hand_over(&self, jobs: Vec<Job>) {
        self.taken.lock().unwrap().extend(jobs.iter().map(|job| job.message.id));
    }

    fn release(&self, _: Room) {
        self.released.fetch_add(1, Ordering::SeqCst);
    }

    async fn relieved(&self, _: &[Arc<Endpoint>]) {}
}

#[tokio::test]
async fn what_is_accepted_is_handed_over_and_what_is_refused_is_not() {
    let server = Server::start().await;
    let taker = Arc::new(Taker::default());
    server.queue.attach(taker.clone());
    let application = server.application("App").await;
    server.endpoint(&application).await;
    server.endpoint(&application).await;
    let path = format!("/api/v1/app/{application}/msg");
    let body = r#"{"eventType":"a","eventId":"e-1","payload":{}}"#;
    let message: MessageId = id_of(&server.post(&path, body).await.expect(202)).parse().unwrap();
    server.post(&path, body).await.expect(409);
    assert_eq!(*taker.taken.lock().unwrap(), [message, message]);
    assert_eq!(taker.reserved.load(Ordering::SeqCst), 4);
    assert_eq!(taker.released.load(Ordering::SeqCst), 2);
}

async fn with_key(server: &Server, path: &str, key: &str, body: &str) -> Reply {
    let headers = [("idempotency-key", key)];
    server.call_as(&server.token, Method::POST, path, &headers, body).await
}

async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut waiting: Vec<_> = futures.map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = waiting.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, output) in waiting.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let std::task::Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *output = Some(ready);
            }
        }
        if outputs.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
