//! Field cases of endpoints that are disabled, deleted or limited, and of what waits for them.
#![expect(clippy::disallowed_methods, reason = "measures the rate of requests")]

mod common;

use common::Setup;
use common::facts::by_message;
use posthaste_testkit::{Receiver, Reply};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Sends again what is held of an endpoint.
async fn replay_held(server: &common::Posthaste, application: &str, endpoint: &str) {
    let path = format!("/api/v1/app/{application}/endpoint/{endpoint}/replay");
    let body = json!({ "since": "2020-01-01T00:00:00Z", "states": ["held"] });
    let (status, answer) = server.api("POST", &path, body).await;
    assert_eq!(status, 202, "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn f066_what_is_for_a_disabled_endpoint_is_held_until_it_is_asked_for() {
    let receiver = Receiver::always(Reply::status(500)).await;
    let clock = Receiver::in_order([Reply::status(500), Reply::ok()]).await;
    let server = Setup::new().with("POSTHASTE_RETRY__DELAYS", "2s").start();
    let application = server.application().await;
    let endpoint = server.endpoint(&application, &receiver.url("/"), json!({})).await;
    for _ in 0..3 {
        server.message(&application, "{}").await;
    }
    server.status_until(|status| status["awaiting_retry"] == 3).await;
    server.patch_endpoint(&application, &endpoint, json!({ "disabled": true })).await;
    for _ in 0..5 {
        server.message(&application, "{}").await;
    }
    server.status_until(|status| status["held"] == 8).await;
    // The retry of another endpoint, which failed later, tells that theirs would have come.
    let other = server.application().await;
    server.endpoint(&other, &clock.url("/"), json!({})).await;
    server.message(&other, "{}").await;
    clock.wait_for(2).await;
    assert_eq!(receiver.requests().len(), 3);
    let path = format!("/api/v1/app/{application}/endpoint/{endpoint}/msg");
    let (_, list) = server.api("GET", &path, Value::Null).await;
    let states: Vec<_> = list["data"].as_array().unwrap().iter().map(|it| &it["state"]).collect();
    assert_eq!(states, ["held"; 8]);
    // Enabling sends nothing by surprise: the next message is the next request.
    receiver.change_to(Reply::ok());
    server.patch_endpoint(&application, &endpoint, json!({ "disabled": false })).await;
    let next = server.message(&application, "{}").await;
    server.until_state((&application, &next, &endpoint), "delivered").await;
    assert_eq!(receiver.requests().len(), 4);
    assert_eq!(server.status().await["held"], 8);
    replay_held(&server, &application, &endpoint).await;
    server.status_until(|status| status["held"] == 0 && status["delivered_last_hour"] == 10).await;
    let requests = receiver.requests();
    assert_eq!((requests.len(), by_message(&requests).len()), (12, 9));
}

#[tokio::test(flavor = "multi_thread")]
async fn f067_a_rate_limit_holds_over_all_processes_and_a_restart() {
    const MESSAGES: usize = 8;
    let period = Duration::from_millis(1_400);
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let noted = arrivals.clone();
    let receiver = Receiver::with(move |_| {
        noted.lock().unwrap().push(Instant::now());
        Reply::ok()
    })
    .await;
    let setup = Setup::new().command(&["serve", "--dev", "--no-worker", "--listen", "127.0.0.1:0"]);
    let server = setup.start();
    let worker = setup.worker();
    let mut workers = vec![worker.start(), worker.start(), worker.start()];
    let application = server.application().await;
    let limit = json!({ "count": 1, "periodMs": period.as_millis() as u64, "burst": 1 });
    let more = json!({ "policy": { "rateLimit": limit } });
    let endpoint = server.endpoint(&application, &receiver.url("/"), more).await;
    for _ in 0..MESSAGES {
        server.message(&application, "{}").await;
    }
    receiver.wait_for(3).await;
    let stopped = workers.remove(0);
    stopped.signal("TERM");
    assert!(stopped.wait().success());
    workers.push(worker.start());
    let status = server.status_until(|status| status["delivered_last_hour"] == MESSAGES).await;
    assert_eq!(status["failed_attempts_last_hour"], 0, "{status}");
    let path = format!("/api/v1/app/{application}/endpoint/{endpoint}/msg");
    let (_, list) = server.api("GET", &path, Value::Null).await;
    for standing in list["data"].as_array().unwrap() {
        assert_eq!(standing["attempts"], 1, "waiting for the limit is no attempt: {standing}");
    }
    // A request may be late by what a busy machine takes; two that are far apart tell best.
    let late_max = Duration::from_secs(1);
    let arrivals = arrivals.lock().unwrap();
    assert_eq!(arrivals.len(), MESSAGES);
    for (first, from) in arrivals.iter().enumerate() {
        for (count, until) in (1_u32..).zip(&arrivals[first + 1..]) {
            let passed = until.duration_since(*from);
            assert!(passed + late_max >= period * count, "{} in {passed:?}", count + 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f073_what_waits_for_a_deleted_endpoint_is_cancelled_and_blocks_nobody() {
    const MESSAGES: usize = 100;
    let (deleted, kept) =
        (Receiver::always(Reply::ok()).await, Receiver::always(Reply::ok()).await);
    let setup = Setup::new().command(&["serve", "--dev", "--no-worker", "--listen", "127.0.0.1:0"]);
    let server = setup.start();
    let application = server.application().await;
    let x = server.endpoint(&application, &deleted.url("/"), json!({})).await;
    server.endpoint(&application, &kept.url("/"), json!({})).await;
    let mut messages = Vec::new();
    for _ in 0..MESSAGES {
        messages.push(server.message(&application, "{}").await);
    }
    assert_eq!(server.status().await["pending"], 2 * MESSAGES);
    let path = format!("/api/v1/app/{application}/endpoint/{x}");
    assert_eq!(server.api("DELETE", &path, Value::Null).await.0, 204);
    let worker = setup.worker().start();
    let status = server
        .status_until(|status| status["delivered_last_hour"] == MESSAGES && status["pending"] == 0)
        .await;
    assert_eq!((&status["dead_letter"], &status["held"]), (&json!(0), &json!(0)));
    for message in [&messages[0], &messages[MESSAGES - 1]] {
        let standing = server.until_state((&application, message, &x), "cancelled").await;
        assert_eq!(standing["cause"], "endpoint deleted", "{standing}");
    }
    assert_eq!(kept.requests().len(), MESSAGES);
    assert!(deleted.requests().is_empty());
    let complaints = worker.log().into_iter().filter(|line| line.contains("\"WARN\""));
    assert_eq!(complaints.collect::<Vec<_>>(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_deleted_in_the_middle_of_its_retries_gets_no_more() {
    let receiver = Receiver::always(Reply::status(500)).await;
    let server = Setup::new().with("POSTHASTE_RETRY__DELAYS", "1s,1s").start();
    let application = server.application().await;
    let endpoint = server.endpoint(&application, &receiver.url("/"), json!({})).await;
    let message = server.message(&application, "{}").await;
    server.status_until(|status| status["awaiting_retry"] == 1).await;
    let path = format!("/api/v1/app/{application}/endpoint/{endpoint}");
    assert_eq!(server.api("DELETE", &path, Value::Null).await.0, 204);
    let standing = server.until_state((&application, &message, &endpoint), "cancelled").await;
    assert_eq!((&standing["attempts"], &standing["url"]), (&json!(1), &json!(receiver.url("/"))));
    assert_eq!(receiver.requests().len(), 1);
}

/// What is in flight while its endpoint is disabled or deleted ends with what it brings: a success
/// counts, and a failure is not tried again.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_outlives_its_endpoint_starts_no_other() {
    let slow = Duration::from_secs(1);
    let fails = Receiver::always(Reply::status(500).after(slow)).await;
    let works = Receiver::always(Reply::ok().after(slow)).await;
    let server = Setup::new().with("POSTHASTE_RETRY__DELAYS", "50ms,50ms").start();
    let application = server.application().await;
    let mut endpoints = Vec::new();
    for receiver in [&fails, &works, &fails, &works] {
        endpoints.push(server.endpoint(&application, &receiver.url("/"), json!({})).await);
    }
    let message = server.message(&application, "{}").await;
    fails.wait_for(2).await;
    works.wait_for(2).await;
    for endpoint in &endpoints[..2] {
        server.patch_endpoint(&application, endpoint, json!({ "disabled": true })).await;
    }
    for endpoint in &endpoints[2..] {
        let path = format!("/api/v1/app/{application}/endpoint/{endpoint}");
        assert_eq!(server.api("DELETE", &path, Value::Null).await.0, 204);
    }
    for (endpoint, state) in endpoints.iter().zip(["held", "delivered", "cancelled", "delivered"]) {
        let standing = server.until_state((&application, &message, endpoint), state).await;
        assert_eq!(standing["attempts"], 1, "{standing}");
    }
    assert_eq!((fails.requests().len(), works.requests().len()), (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_deleted_application_is_cancelled() {
    const MESSAGES: usize = 20;
    let receiver = Receiver::always(Reply::status(500)).await;
    let server = Setup::new().with("POSTHASTE_RETRY__DELAYS", "1s,1s").start();
    let application = server.application().await;
    let endpoint = server.endpoint(&application, &receiver.url("/"), json!({})).await;
    for _ in 0..MESSAGES {
        server.message(&application, "{}").await;
    }
    receiver.wait_for(10).await;
    server.health_until(&application, &endpoint, |health| health["breaker"] == "open").await;
    let path = format!("/api/v1/app/{application}");
    assert_eq!(server.api("DELETE", &path, Value::Null).await.0, 204);
    let nothing_left = |status: &Value| {
        let waiting = ["pending", "awaiting_retry", "in_flight", "held", "dead_letter"];
        waiting.iter().all(|name| status[name] == 0) && status["oldest_undelivered"].is_null()
    };
    server.status_until(nothing_left).await;
    let sent = receiver.requests().len();
    // Another application is served as before, and the deleted one is not.
    let other = server.application().await;
    let healthy = Receiver::always(Reply::ok()).await;
    server.endpoint(&other, &healthy.url("/"), json!({})).await;
    server.message(&other, "{}").await;
    healthy.wait_for(1).await;
    assert_eq!(receiver.requests().len(), sent);
    assert_eq!(server.api("GET", &path, Value::Null).await.0, 404);
}

/// An endpoint that said it was gone is there again.
#[tokio::test(flavor = "multi_thread")]
async fn f060_a_gone_endpoint_can_be_enabled_and_gets_what_it_missed() {
    let receiver = Receiver::in_order([Reply::status(410), Reply::ok()]).await;
    let server = Setup::new().start();
    let application = server.application().await;
    let endpoint = server.endpoint(&application, &receiver.url("/"), json!({})).await;
    let first = server.message(&application, "{}").await;
    server.until_state((&application, &first, &endpoint), "dead_letter").await;
    let second = server.message(&application, "{}").await;
    server.until_state((&application, &second, &endpoint), "held").await;
    let path = format!("/api/v1/app/{application}/msg/{second}/endpoint/{endpoint}/resend");
    let (status, answer) = server.api("POST", &path, json!({})).await;
    assert_eq!((status, &answer["code"]), (409, &json!("endpoint_disabled")), "{answer}");
    server.patch_endpoint(&application, &endpoint, json!({ "disabled": false })).await;
    let path = format!("/api/v1/app/{application}/endpoint/{endpoint}/replay");
    let body = json!({ "since": "2020-01-01T00:00:00Z", "states": ["held", "dead_letter"] });
    assert_eq!(server.api("POST", &path, body).await.0, 202);
    for message in [&first, &second] {
        server.until_state((&application, message, &endpoint), "delivered").await;
    }
    assert_eq!(receiver.requests().len(), 3);
    let shown = server.endpoint_now(&application, &endpoint).await;
    assert_eq!((&shown["disabled"], &shown["disabledReason"]), (&json!(false), &Value::Null));
}

/// Deployments often start many processes that all put what they need in place.
#[test]
fn whoever_puts_a_new_object_at_once_with_others_gets_it_too() {
    const AT_ONCE: usize = 8;
    let server = Setup::new().start();
    let put = |path: &str, body: Value| {
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let call = || server.call("PUT", path, Some(&body.to_string())).0;
            let calls: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(call)).collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        let count = |status| statuses.iter().filter(|it| **it == status).count();
        assert_eq!((count(201), count(200)), (1, AT_ONCE - 1), "{path} gave {statuses:?}");
    };
    for number in 0..10 {
        let application = format!("/api/v1/app/at-once-{number}");
        put(&application, json!({ "name": "At once" }));
        put(&format!("{application}/endpoint/hook"), json!({ "url": "http://127.0.0.1:9/" }));
        put(&format!("/api/v1/event-type/at.once.{number}"), json!({ "description": "x" }));
    }
}
