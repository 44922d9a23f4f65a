//! Field cases of publishing: keys, bounds, bursts, and a database that others use too.
#![expect(clippy::unwrap_used, reason = "a test may fail")]
#![expect(clippy::disallowed_methods, reason = "holds a database for a while")]

mod common;

use common::facts::by_message;
use common::{Posthaste, Setup};
use posthaste_testkit::{Receiver, Reply};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Publishes with an idempotency key.
async fn publish(server: &Posthaste, application: &str, key: &str, body: &str) -> (u16, Value) {
    let url = format!("{}/api/v1/app/{application}/msg", server.url());
    let (key, body) = (key.to_owned(), body.to_owned());
    let publishing = tokio::task::spawn_blocking(move || {
        let config = ureq::Agent::config_builder().http_status_as_error(false).build();
        let mut answer = ureq::Agent::from(config)
            .post(url)
            .header("authorization", format!("Bearer {}", common::token()))
            .header("idempotency-key", key)
            .content_type("application/json")
            .send(body)
            .unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        (answer.status().as_u16(), serde_json::from_str(&text).unwrap())
    });
    publishing.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn f048_one_key_makes_one_message() {
    let receiver = Receiver::in_order([Reply::status(500), Reply::ok()]).await;
    let other = Receiver::always(Reply::ok()).await;
    let setup = Setup::new();
    let server = setup.start();
    let application = server.application().await;
    server.endpoint(&application, &receiver.url("/"), json!({})).await;
    server.endpoint(&application, &other.url("/"), json!({})).await;
    let body = r#"{"eventType":"test.event","payload":{"n":1}}"#;
    let at_once = (0..8).map(|_| publish(&server, &application, "k1", body));
    let answers = futures_all(at_once).await;
    let ids: BTreeSet<_> = answers
        .iter()
        .map(|(status, answer)| {
            assert_eq!(*status, 202, "{answer}");
            answer["id"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(ids.len(), 1, "{answers:?}");
    server.status_until(|status| status["delivered_last_hour"] == 2).await;
    // The key is kept in the store, so it holds over a restart.
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let server = setup.start();
    let (status, again) = publish(&server, &application, "k1", body).await;
    assert_eq!(status, 202, "{again}");
    assert!(ids.contains(again["id"].as_str().unwrap()));
    let changed = body.replace("\"n\":1", "\"n\":2");
    let (status, refused) = publish(&server, &application, "k1", &changed).await;
    assert_eq!(status, 422, "{refused}");
    let (_, list) = server.api("GET", &format!("/api/v1/app/{application}/msg"), Value::Null).await;
    assert_eq!(list["data"].as_array().unwrap().len(), 1, "{list}");
    assert_eq!((receiver.requests().len(), other.requests().len()), (2, 1));
    assert_eq!(by_message(&receiver.requests()).into_keys().collect::<BTreeSet<_>>(), ids);
}

/// Polls all of them together.
async fn futures_all<F: Future>(all: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut waiting: Vec<_> = all.into_iter().map(|one| Box::pin(one)).collect();
    let mut done: Vec<Option<F::Output>> = waiting.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (one, output) in waiting.iter_mut().zip(&mut done) {
            if output.is_none()
                && let std::task::Poll::Ready(ready) = one.as_mut().poll(context)
            {
                *output = Some(ready);
            }
        }
        match done.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// Another program keeps the database to itself for longer than anybody waits.
#[tokio::test(flavor = "multi_thread")]
async fn f072_a_database_that_is_away_for_a_while_ends_no_loop() {
    let receiver = Receiver::always(Reply::ok()).await;
    let failing = Receiver::in_order([Reply::status(500), Reply::status(500), Reply::ok()]).await;
    let setup = Setup::new().with("POSTHASTE_RETRY__DELAYS", "1s,1s,1s");
    let server = setup.start();
    let application = server.application().await;
    server.endpoint(&application, &receiver.url("/"), json!({})).await;
    server.endpoint(&application, &failing.url("/"), json!({})).await;
    let before = server.message(&application, "{}").await;
    let lines_before = server.log().len();
    let held = setup.database().hold();
    let path = format!("/api/v1/app/{application}/msg");
    let body = json!({ "eventType": "test.event", "payload": {} });
    let since = Instant::now();
    let mut accepted = BTreeSet::from([before]);
    let mut refused = 0;
    while since.elapsed() < Duration::from_secs(7) {
        let publishing = (0..3).map(|_| server.api("POST", &path, body.clone()));
        let health = server.api("GET", "/api/v1/health", Value::Null);
        let (answers, health) = tokio::join!(futures_all(publishing), health);
        for (status, answer) in answers {
            match status {
                202 => assert!(accepted.insert(answer["id"].as_str().unwrap().to_owned())),
                503 => refused += 1,
                _ => panic!("{status} {answer}"),
            }
        }
        assert_eq!((health.0, &health.1["database"]["status"]), (503, &json!("error")));
        // A refusal may come at once, and publishers that are told to wait do.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(refused > 0, "the database was not away");
    drop(held);
    // Everything goes on by itself: intake, first attempts, retries, records.
    server.get_until("/api/v1/health", |health| health["database"]["status"] == "ok").await;
    let all = accepted.len() + 1;
    accepted.insert(server.message(&application, "{}").await);
    let status = server.status_until(|it| it["delivered_last_hour"] == 2 * all).await;
    assert_eq!((&status["in_flight"], &status["dead_letter"]), (&json!(0), &json!(0)), "{status}");
    assert_eq!(server.api("GET", "/api/v1/health", Value::Null).await.0, 200);
    let delivered: BTreeSet<_> = by_message(&receiver.requests()).into_keys().collect();
    assert_eq!(delivered, accepted, "what was refused is not sent, what was accepted is");
    // That it was away is told, not what that cost everybody.
    let log = server.log();
    let warnings: Vec<_> =
        log[lines_before..].iter().filter(|line| line.contains("\"WARN\"")).collect();
    assert!((1..=3).contains(&warnings.len()), "{warnings:#?}");
    assert!(warnings[0].contains("store.unavailable"), "{warnings:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn f078_slow_receivers_hold_nothing_up() {
    const SLOW: usize = 50;
    const FAST: usize = 100;
    let hangs = Receiver::always(Reply::hang()).await;
    let healthy = Receiver::always(Reply::ok()).await;
    let setup = Setup::new().with("POSTHASTE_HTTP__TIMEOUT", "60s");
    let server = setup.start();
    let slow = server.application().await;
    for number in 0..SLOW {
        server.endpoint(&slow, &hangs.url(&format!("/{number}")), json!({})).await;
    }
    server.message(&slow, "{}").await;
    hangs.wait_for(SLOW).await;
    assert_eq!(hangs.open_connections(), SLOW, "all of them at the same time");
    // Nothing that waits for an answer holds the database: others can write, and publish.
    setup.database().assert_free();
    let application = server.application().await;
    server.endpoint(&application, &healthy.url("/"), json!({})).await;
    for _ in 0..FAST {
        server.message(&application, "{}").await;
    }
    let status = server.status_until(|status| status["delivered_last_hour"] == FAST).await;
    assert_eq!(status["in_flight"], SLOW, "{status}");
    assert_eq!(hangs.open_connections(), SLOW);
}

/// Sixteen publishers at two processes with a worker each, beside whoever reads, on one file.
#[tokio::test(flavor = "multi_thread")]
async fn f096_two_processes_share_a_file_and_nobody_hears_of_it() {
    const EACH: usize = 25;
    const PUBLISHERS: usize = 16;
    let receiver = Receiver::always(Reply::ok()).await;
    let setup = Setup::new();
    let servers = [setup.start(), setup.start()];
    let application = servers[0].application().await;
    servers[0].endpoint(&application, &receiver.url("/"), json!({})).await;
    let publishing = futures_all((0..PUBLISHERS).map(|number| {
        let (server, application) = (&servers[number % 2], &application);
        async move {
            let mut ids = Vec::new();
            for _ in 0..EACH {
                ids.push(server.message(application, r#"{"some":"thing"}"#).await);
            }
            ids
        }
    }));
    let reading = async {
        loop {
            for server in &servers {
                server.status().await;
                let path = format!("/api/v1/app/{application}/msg?limit=250");
                assert_eq!(server.api("GET", &path, Value::Null).await.0, 200);
            }
        }
    };
    let ids = tokio::select! {
        ids = publishing => ids,
        () = reading => Vec::new(),
    };
    let ids: BTreeSet<String> = ids.into_iter().flatten().collect();
    assert_eq!(ids.len(), PUBLISHERS * EACH);
    for server in &servers {
        server.status_until(|status| status["delivered_last_hour"] == ids.len()).await;
    }
    let requests = by_message(&receiver.requests());
    assert!(requests.values().all(|count| *count == 1), "{requests:?}");
    assert_eq!(requests.into_keys().collect::<BTreeSet<_>>(), ids);
    for server in &servers {
        let log = server.log();
        let complaints: Vec<_> =
            log.iter().filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
        assert!(complaints.is_empty(), "{complaints:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f101_the_largest_payload_is_delivered_whole_and_a_byte_more_is_refused() {
    const LARGEST: usize = 5 * 1024 * 1024;
    let receiver = Receiver::in_order([Reply::status(500), Reply::ok()]).await;
    let server = Setup::new().start();
    let application = server.application().await;
    server.endpoint(&application, &receiver.url("/"), json!({})).await;
    let payload = |bytes: usize| format!(r#"{{"a":"{}"}}"#, "x".repeat(bytes - 8));
    let largest = payload(LARGEST);
    assert_eq!(largest.len(), LARGEST);
    server.message(&application, &largest).await;
    for request in receiver.wait_for(2).await {
        assert!(request.body == largest.as_bytes(), "{} bytes came", request.body.len());
    }
    let path = format!("/api/v1/app/{application}/msg");
    let body = format!(r#"{{"eventType":"test.event","payload":{}}}"#, payload(LARGEST + 1));
    let (status, answer) = server.api_raw("POST", &path, Some(body)).await;
    assert_eq!((status, &answer["code"]), (413, &json!("payload_too_large")), "{answer}");
    assert!(answer["detail"].as_str().unwrap().contains(&LARGEST.to_string()), "{answer}");
    server.status_until(|status| status["delivered_last_hour"] == 1).await;
    assert_eq!(receiver.requests().len(), 2);
}
