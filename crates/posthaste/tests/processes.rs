//! Field cases of several processes on one database: kills, stops, slow answers; and whether what
//! they say is what happened.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use common::facts::by_message;
use common::{PATIENCE, Posthaste, Setup};
use posthaste_core::limits::ATTEMPTS_LOST_MAX;
use posthaste_testkit::{Receiver, Reply};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

/// Longer than a worker may be silent before others take it for dead.
const LONGER_THAN_A_HEARTBEAT: Duration = Duration::from_secs(14);

fn without_worker() -> Setup {
    Setup::new().command(&["serve", "--dev", "--no-worker", "--listen", "127.0.0.1:0"])
}

#[tokio::test(flavor = "multi_thread")]
async fn f069_what_a_killed_worker_had_in_hand_is_sent_by_another() {
    const DELIVERIES: usize = 20;
    let receiver = Receiver::always(Reply::hang()).await;
    let setup = without_worker().with("POSTHASTE_HTTP__TIMEOUT", "60s");
    let server = setup.start();
    let killed = setup.worker().start();
    let application = server.application().await;
    for number in 0..DELIVERIES {
        server.endpoint(&application, &receiver.url(&format!("/{number}")), json!({})).await;
    }
    let message = server.message(&application, "{}").await;
    receiver.wait_for(DELIVERIES).await;
    let _lives = setup.worker().start();
    receiver.change_to(Reply::ok());
    killed.kill();
    // Well within the lease, which lasts for more than a minute.
    let status = server.status_until(|it| it["delivered_last_hour"] == DELIVERIES).await;
    assert_eq!((&status["in_flight"], &status["dead_letter"]), (&json!(0), &json!(0)));
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for request in receiver.requests() {
        assert_eq!(request.header("webhook-id").as_ref(), Some(&message));
        *counts.entry(request.path()).or_default() += 1;
    }
    assert_eq!(counts.len(), DELIVERIES);
    assert!(counts.values().all(|count| *count == 2), "{counts:?}");
    assert_eq!(status["workers"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn f071_a_worker_that_stops_in_order_is_not_taken_for_dead() {
    let receiver = Receiver::always(Reply::ok().after(LONGER_THAN_A_HEARTBEAT)).await;
    let setup = without_worker()
        .with("POSTHASTE_HTTP__TIMEOUT", "40s")
        .with("POSTHASTE_SHUTDOWN__TIMEOUT", "40s");
    let server = setup.start();
    let stopping = setup.worker().start();
    let application = server.application().await;
    let endpoint = server.endpoint(&application, &receiver.url("/"), json!({})).await;
    let message = server.message(&application, "{}").await;
    receiver.wait_for(1).await;
    let idle = setup.worker().start();
    stopping.signal("TERM");
    let ended = tokio::task::spawn_blocking(move || stopping.wait());
    assert_eq!(ended.await.unwrap().code(), Some(0));
    // Recorded before the process ended.
    let standing = server.standing(&application, &message, &endpoint).await;
    assert_eq!((&standing["state"], &standing["attempts"]), (&json!("delivered"), &json!(1)));
    assert_eq!(receiver.requests().len(), 1);
    assert!(idle.logged("janitor.recovered_leases").is_empty());
}

/// What does not end within the bound is handed back at once, not after the lease.
#[tokio::test(flavor = "multi_thread")]
async fn f071_what_does_not_end_in_time_is_handed_back() {
    let receiver = Receiver::in_order([Reply::hang(), Reply::ok()]).await;
    let setup = without_worker()
        .with("POSTHASTE_HTTP__TIMEOUT", "60s")
        .with("POSTHASTE_SHUTDOWN__TIMEOUT", "500ms");
    let server = setup.start();
    let stopping = setup.worker().start();
    let application = server.application().await;
    let endpoint = server.endpoint(&application, &receiver.url("/"), json!({})).await;
    let message = server.message(&application, "{}").await;
    receiver.wait_for(1).await;
    let _idle = setup.worker().start();
    stopping.signal("TERM");
    let ended = tokio::task::spawn_blocking(move || stopping.wait());
    assert_eq!(ended.await.unwrap().code(), Some(0));
    server.until_state((&application, &message, &endpoint), "delivered").await;
    assert_eq!(receiver.requests().len(), 2);
}

/// Nothing of the lease is shorter than the longest exchange, and nobody who tidies up a folder of
/// lock files makes a living worker a dead one.
#[tokio::test(flavor = "multi_thread")]
async fn f075_a_receiver_that_takes_its_time_gets_one_request() {
    let receiver = Receiver::always(Reply::ok().after(LONGER_THAN_A_HEARTBEAT)).await;
    let setup = without_worker().with("POSTHASTE_HTTP__TIMEOUT", "60s");
    let server = setup.start();
    let workers = [setup.worker().start(), setup.worker().start()];
    let application = server.application().await;
    let endpoint = server.endpoint(&application, &receiver.url("/"), json!({})).await;
    let message = server.message(&application, "{}").await;
    receiver.wait_for(1).await;
    for entry in std::fs::read_dir(setup.folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "lock") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let standing = server.until_state((&application, &message, &endpoint), "delivered").await;
    assert_eq!(standing["attempts"], 1, "{standing}");
    assert_eq!(receiver.requests().len(), 1);
    for worker in workers {
        assert!(worker.logged("janitor.recovered_leases").is_empty());
    }
}

/// The receivers of `the_figures_agree`: a path and what is answered there.
const SCRIPTS: [(&str, &[u16]); 4] =
    [("/well", &[200]), ("/flaky", &[500, 200]), ("/down", &[503]), ("/gone", &[410])];

/// The status row, the health answers, the attempts and the log all tell what the receiver saw.
#[tokio::test(flavor = "multi_thread")]
async fn the_figures_agree_with_what_the_receiver_saw() {
    const MESSAGES: usize = 12;
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    let receiver = Receiver::with(move |request| {
        let path = request.path();
        let script = SCRIPTS.iter().find(|(name, _)| *name == path).unwrap().1;
        let key = (path, request.header("webhook-id").unwrap());
        let count = counts.entry(key).or_default();
        *count += 1;
        Reply::status(script[(*count - 1).min(script.len() - 1)])
    })
    .await;
    let setup = Setup::new().with("POSTHASTE_BREAKER__FAILURE_THRESHOLD", "1000");
    let server = setup.start();
    let application = server.application().await;
    let mut endpoints = BTreeMap::new();
    for (path, _) in SCRIPTS {
        let id = server.endpoint(&application, &receiver.url(path), json!({})).await;
        endpoints.insert(path, id);
    }
    for _ in 0..MESSAGES {
        server.message(&application, "{}").await;
    }
    let settled = |status: &Value| {
        ["pending", "in_flight", "awaiting_retry"].iter().all(|name| status[name] == 0)
            && status["delivery_time_ms"]["count"] == 2 * MESSAGES
    };
    let status = server.status_until(settled).await;
    let requests = receiver.requests();
    let seen = |path: &str| requests.iter().filter(|request| request.path() == path).count();
    assert_eq!(
        (seen("/well"), seen("/flaky"), seen("/down")),
        (MESSAGES, 2 * MESSAGES, 4 * MESSAGES)
    );
    let gone = seen("/gone");
    assert!((1..=MESSAGES).contains(&gone), "{gone}");
    assert_eq!(status["delivered_last_hour"], 2 * MESSAGES, "{status}");
    assert!(status["delivery_time_ms"]["p99"].as_f64().unwrap() > 0.0, "{status}");
    assert_eq!(status["dead_letter"], MESSAGES + gone, "{status}");
    assert_eq!(status["failed_last_hour"], MESSAGES + gone, "{status}");
    assert_eq!(status["held"], MESSAGES - gone, "{status}");
    assert_eq!(status["failed_attempts_last_hour"], 5 * MESSAGES + gone, "{status}");
    assert_eq!((&status["endpoints_disabled"], &status["workers"]), (&json!(1), &json!(1)));
    assert_eq!(printed_status(&setup, &server)["dead_letter"], status["dead_letter"]);
    for (path, endpoint) in &endpoints {
        let samples = seen(path);
        let health = server
            .health_until(&application, endpoint, |health| health["samples"] == samples)
            .await;
        assert!(health["p50_ms"].is_null() && health["p50Ms"].as_f64().unwrap() > 0.0, "{health}");
        let failures =
            if *path == "/down" { samples } else { gone * usize::from(*path == "/gone") };
        assert_eq!(health["consecutiveFailures"], failures, "{path}: {health}");
        assert_eq!(health["breaker"], "closed", "{health}");
        agree(&server, &application, endpoint, samples).await;
    }
    let page = server.api("GET", "/metrics", Value::Null).await.1;
    let page = page.as_str().unwrap();
    let delivered = format!("posthaste_attempts_total{{outcome=\"success\"}} {}\n", 2 * MESSAGES);
    assert!(page.contains(&delivered), "{page}");
    assert_eq!(by_message(&requests).len(), MESSAGES);
}

/// The log has one line for each attempt that the API lists, and they say the same.
async fn agree(server: &Posthaste, application: &str, endpoint: &str, count: usize) {
    let path = format!("/api/v1/app/{application}/attempt/endpoint/{endpoint}?limit=250");
    let (_, listed) = server.api("GET", &path, Value::Null).await;
    let listed: BTreeMap<String, Value> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|attempt| (attempt["id"].as_str().unwrap().to_owned(), attempt.clone()))
        .collect();
    let lines: Vec<Value> = server
        .logged("delivery.attempted")
        .into_iter()
        .filter(|line| line["endpoint_id"] == endpoint)
        .collect();
    assert_eq!((listed.len(), lines.len()), (count, count));
    for line in lines {
        let attempt = &listed[line["attempt_id"].as_str().unwrap()];
        assert_eq!(line["message_id"], attempt["msgId"]);
        assert_eq!(line["attempt"], attempt["attemptNumber"]);
        assert_eq!(line["outcome"], attempt["outcome"]);
        assert_eq!(line["verdict"], attempt["verdict"]);
        let latency = line["latency_ms"].as_f64().unwrap();
        let shown = attempt["responseDurationMs"].as_f64().unwrap();
        assert!((latency - shown).abs() <= 1.0, "{latency} and {shown}");
    }
}

/// What `posthaste status --json` prints.
fn printed_status(setup: &Setup, server: &Posthaste) -> Value {
    let words = ["status", "--json", "--url", &server.url(), "--token", &common::token()];
    let output = setup.run(&words).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A stop in the middle of a burst loses nothing and sends nothing twice.
#[tokio::test(flavor = "multi_thread")]
async fn orderly_restarts_under_load_lose_and_repeat_nothing() {
    const MESSAGES: usize = 300;
    let receiver = Receiver::always(Reply::ok().after(Duration::from_millis(20))).await;
    let setup = Setup::new();
    let mut server = setup.start();
    let application = server.application().await;
    server.endpoint(&application, &receiver.url("/"), json!({})).await;
    for number in 1..=MESSAGES {
        server.message(&application, "{}").await;
        if number % 75 == 0 {
            server.signal("TERM");
            let ended = tokio::task::spawn_blocking(move || server.wait());
            assert_eq!(ended.await.unwrap().code(), Some(0));
            server = setup.start();
        }
    }
    let all = tokio::time::timeout(PATIENCE, async {
        server.status_until(|status| status["delivered_last_hour"] == MESSAGES).await
    });
    assert_eq!(all.await.unwrap()["dead_letter"], 0);
    let requests = by_message(&receiver.requests());
    assert_eq!(requests.len(), MESSAGES);
    assert!(requests.values().all(|count| *count == 1), "{requests:?}");
}

/// A probe that is lost with its worker must not keep an endpoint cut off for a whole lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_probe_that_dies_with_its_worker_is_made_by_another() {
    for how in ["KILL", "TERM"] {
        let failing = [Reply::status(500), Reply::status(500)];
        let receiver = Receiver::in_order(failing.into_iter().chain([Reply::hang()])).await;
        let setup = without_worker()
            .with("POSTHASTE_BREAKER__FAILURE_THRESHOLD", "2")
            .with("POSTHASTE_BREAKER__COOLDOWN", "200ms")
            .with("POSTHASTE_HTTP__TIMEOUT", "60s")
            .with("POSTHASTE_SHUTDOWN__TIMEOUT", "100ms");
        let server = setup.start();
        let stopped = setup.worker().start();
        let application = server.application().await;
        let endpoint = server.endpoint(&application, &receiver.url("/"), json!({})).await;
        for _ in 0..2 {
            server.message(&application, "{}").await;
        }
        server.health_until(&application, &endpoint, |it| it["breaker"] == "half_open").await;
        receiver.wait_for(3).await;
        receiver.change_to(Reply::ok());
        let _lives = setup.worker().start();
        stopped.signal(how);
        tokio::task::spawn_blocking(move || stopped.wait()).await.unwrap();
        server.status_until(|status| status["delivered_last_hour"] == 2).await;
        let path = format!("/api/v1/app/{application}/endpoint/{endpoint}/health");
        let (_, health) = server.api("GET", &path, Value::Null).await;
        assert_eq!(health["breaker"], "closed", "{how}: {health}");
    }
}

/// While nobody can write, nobody can say that it lives. That makes nobody dead.
#[tokio::test(flavor = "multi_thread")]
async fn f072_a_database_that_was_away_makes_no_living_worker_a_dead_one() {
    const DELIVERIES: usize = 8;
    let away_for = LONGER_THAN_A_HEARTBEAT + Duration::from_secs(2);
    let slow = Reply::ok().after(away_for + Duration::from_secs(5));
    let receiver = Receiver::always(slow).await;
    let setup = without_worker().with("POSTHASTE_HTTP__TIMEOUT", "60s");
    let server = setup.start();
    let worker = setup.worker();
    let workers = [worker.start(), worker.start(), worker.start()];
    let application = server.application().await;
    for number in 0..DELIVERIES {
        server.endpoint(&application, &receiver.url(&format!("/{number}")), json!({})).await;
    }
    server.message(&application, "{}").await;
    receiver.wait_for(DELIVERIES).await;
    let held = setup.database().hold();
    // For as long as that, not until something happens.
    tokio::time::sleep(away_for).await;
    drop(held);
    server.status_until(|status| status["delivered_last_hour"] == DELIVERIES).await;
    assert_eq!(receiver.requests().len(), DELIVERIES);
    for worker in workers {
        assert!(worker.logged("janitor.recovered_leases").is_empty());
    }
}

/// Its attempts were counted when they were claimed; none was ever recorded.
#[tokio::test(flavor = "multi_thread")]
async fn f070_a_delivery_that_kills_its_workers_is_given_up() {
    const ALLOWED: u32 = 4;
    let receiver = Receiver::always(Reply::ok()).await;
    let setup = without_worker();
    let server = setup.start();
    let application = server.application().await;
    let endpoint = server.endpoint(&application, &receiver.url("/"), json!({})).await;
    let mut messages = Vec::new();
    for lost in [ATTEMPTS_LOST_MAX - 1, ATTEMPTS_LOST_MAX] {
        messages.push(server.message(&application, "{}").await);
        let attempts = ALLOWED + lost;
        let change = format!("SET attempts = {attempts}, plan_attempts = {attempts}");
        let new = "WHERE attempts = 0";
        if setup.database().url().is_some() {
            setup.database().sql(&format!("UPDATE posthaste.delivery {change} {new}"));
        } else {
            let path = setup.folder().join("posthaste.db");
            let database = rusqlite::Connection::open(path).unwrap();
            database.execute(&format!("UPDATE delivery {change} {new}"), []).unwrap();
        }
    }
    let _worker = setup.worker().start();
    server.until_state((&application, &messages[0], &endpoint), "delivered").await;
    let dead = server.until_state((&application, &messages[1], &endpoint), "dead_letter").await;
    assert_eq!(dead["attempts"], ALLOWED + ATTEMPTS_LOST_MAX + 1, "{dead}");
    assert!(dead["cause"].as_str().unwrap().starts_with("exhausted"), "{dead}");
    assert_eq!(by_message(&receiver.requests()), [(messages[0].clone(), 1)].into());
}

/// A worker of its own shows what it does where it is told to, without a token, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_has_metrics_where_it_is_told_to() {
    let receiver = Receiver::always(Reply::ok()).await;
    let setup = without_worker();
    let server = setup.start();
    let mut worker = setup.run(&["worker", "--dev", "--metrics-listen", "127.0.0.1:0"]);
    let worker = worker.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut worker = Killed(worker);
    let mut lines = BufReader::new(worker.0.stdout.take().unwrap()).lines();
    let url = lines.find_map(|line| Some(line.unwrap().split_once("Metrics: ")?.1.to_owned()));
    let url = url.unwrap();
    let application = server.application().await;
    server.endpoint(&application, &receiver.url("/"), json!({})).await;
    server.message(&application, "{}").await;
    server.status_until(|status| status["delivered_last_hour"] == 1).await;
    let get = |path: &str| {
        let url = url.replace("/metrics", path);
        let config = ureq::Agent::config_builder().http_status_as_error(false).build();
        let mut answer = ureq::Agent::from(config).get(&url).call().unwrap();
        (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
    };
    let (status, text) = get("/metrics");
    assert_eq!(status, 200);
    assert!(text.contains("posthaste_verdicts_total{verdict=\"delivered\"} 1\n"), "{text}");
    assert_eq!(get("/api/v1/health").0, 200);
    assert_eq!(get("/api/v1/health/ping").0, 204);
    let (status, text) = get("/api/v1/app");
    assert!(status == 404 && text.contains("not_implemented"), "{status} {text}");
}

/// Whatever becomes of the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
