//! Field cases of what is tried again, how often, and when it is given up.
#![expect(clippy::disallowed_methods, reason = "measures what comes one after the other")]

mod common;

use common::facts::{by_message, numbers, speaks_no_tls};
use common::{PATIENCE, Setup};
use posthaste_testkit::{Receiver, Reply};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const HALF_AN_HOUR_MS: u64 = 1_800_000;

#[tokio::test(flavor = "multi_thread")]
async fn f057_attempts_are_counted_and_end() {
    let receiver = Receiver::always(Reply::status(403)).await;
    let server = Setup::new().start();
    let application = server.application().await;
    let endpoint = server.endpoint(&application, &receiver.url("/"), json!({})).await;
    let message = server.message(&application, "{}").await;
    let dead = server.until_state((&application, &message, &endpoint), "dead_letter").await;
    assert_eq!((&dead["attempts"], &dead["cause"]), (&json!(4), &json!("exhausted: status_403")));
    assert_eq!(receiver.requests().len(), 4);
    let path = format!("/api/v1/dead-letter?app={application}");
    let (_, letters) = server.api("GET", &path, Value::Null).await;
    let letter = &letters["data"][0];
    assert_eq!(letter["msgId"], message);
    assert_eq!((&letter["attempts"], &letter["lastStatus"]), (&json!(4), &json!(403)));
}

#[tokio::test(flavor = "multi_thread")]
async fn f057_a_restart_in_the_middle_does_not_start_the_count_again() {
    let setup = Setup::new().with("POSTHASTE_RETRY__DELAYS", "50ms,2s,50ms");
    let receiver = Receiver::always(Reply::status(403)).await;
    let server = setup.start();
    let application = server.application().await;
    let endpoint = server.endpoint(&application, &receiver.url("/"), json!({})).await;
    let message = server.message(&application, "{}").await;
    receiver.wait_for(2).await;
    server
        .standing_until(&application, &message, &endpoint, |standing| {
            standing["attempts"] == 2 && standing["state"] == "awaiting_retry"
        })
        .await;
    server.kill();
    let server = setup.start();
    let dead = server.until_state((&application, &message, &endpoint), "dead_letter").await;
    assert_eq!(dead["attempts"], 4, "{dead}");
    assert_eq!(receiver.requests().len(), 4);
    assert_eq!(numbers(&server.attempts(&application, &message).await), [1, 2, 3, 4]);
}

/// Deliveries of mixed plans fail while workers come and go; each runs to the end of its plan.
#[tokio::test(flavor = "multi_thread")]
async fn f058_no_due_retry_is_forgotten() {
    const MESSAGES: usize = 40;
    let plans: [&[u64]; 5] = [&[], &[50], &[100, 700], &[1_500, 200, 50], &[300, 300, 300, 1_000]];
    let receiver = Receiver::always(Reply::status(500)).await;
    let setup = Setup::new()
        .command(&["serve", "--no-worker", "--dev", "--listen", "127.0.0.1:0"])
        // The plans are to be followed, not the breaker's probes.
        .with("POSTHASTE_BREAKER__FAILURE_THRESHOLD", "1000000");
    let workers = setup.worker();
    let server = setup.start();
    let application = server.application().await;
    let mut endpoints = BTreeMap::new();
    for (index, delays_ms) in plans.iter().enumerate() {
        let retry = json!({ "kind": "schedule", "delaysMs": delays_ms, "jitter": 0.2 });
        let more = json!({ "policy": { "retry": retry } });
        let url = receiver.url(&format!("/{index}"));
        endpoints.insert(format!("/{index}"), server.endpoint(&application, &url, more).await);
    }
    let mut running = vec![workers.start()];
    for number in 0..MESSAGES {
        server.message(&application, "{}").await;
        match number {
            10 => running.extend([workers.start(), workers.start(), workers.start()]),
            20 => running.remove(0).kill(),
            30 => running.remove(0).signal("TERM"),
            _ => {}
        }
    }
    let status = server
        .status_until(|status| {
            let left = ["pending", "in_flight", "awaiting_retry"].map(|name| &status[name]);
            left.iter().all(|count| **count == 0)
        })
        .await;
    assert_eq!(status["dead_letter"], MESSAGES * plans.len(), "{status}");
    assert_eq!(status["oldest_undelivered"], Value::Null, "{status}");
    let requests = receiver.requests();
    for (index, delays_ms) in plans.iter().enumerate() {
        let path = format!("/{index}");
        let list = format!("/api/v1/app/{application}/endpoint/{}/msg?limit=250", endpoints[&path]);
        let (_, list) = server.api("GET", &list, Value::Null).await;
        let planned = delays_ms.len() as u64 + 1;
        let list = list["data"].as_array().unwrap();
        let counted: Vec<u64> =
            list.iter().map(|standing| standing["attempts"].as_u64().unwrap()).collect();
        // An attempt that the killed worker had in hand is counted, and if it was the last, made
        // again: it may never have been sent.
        assert_eq!(counted.len(), MESSAGES);
        assert!(counted.iter().all(|count| (planned..=planned + 1).contains(count)), "{counted:?}");
        let sent = requests.iter().filter(|request| request.path() == path).count() as u64;
        assert!(sent <= counted.iter().sum(), "{path}: {sent} requests, {counted:?}");
    }
}

/// A worker that sleeps until the next due time hears of an earlier one.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_is_due_soon_does_not_wait_for_the_next_look() {
    const RETRIES: usize = 20;
    let receiver = Receiver::always(Reply::status(500)).await;
    let server = Setup::new().with("POSTHASTE_BREAKER__FAILURE_THRESHOLD", "1000").start();
    let application = server.application().await;
    let retry = json!({ "kind": "schedule", "delaysMs": vec![20; RETRIES], "jitter": 0.0 });
    let more = json!({ "policy": { "retry": retry } });
    server.endpoint(&application, &receiver.url("/"), more).await;
    let since = Instant::now();
    server.message(&application, "{}").await;
    receiver.wait_for(RETRIES + 1).await;
    // Half a second is planned; a look every second would make it some ten.
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn f059_a_name_that_does_not_resolve_is_tried_again() {
    let server = Setup::new().start();
    let application = server.application().await;
    let endpoint = server.endpoint(&application, "http://nowhere.invalid/", json!({})).await;
    let message = server.message(&application, "{}").await;
    server.until_state((&application, &message, &endpoint), "dead_letter").await;
    let attempts = server.attempts(&application, &message).await;
    assert_eq!(numbers(&attempts), [1, 2, 3, 4]);
    for attempt in &attempts {
        assert_eq!(attempt["outcome"], "dns", "{attempt}");
        assert!(attempt["response"].as_str().unwrap().starts_with("dns: "), "{attempt}");
    }
    // The name is there at last.
    let receiver = Receiver::always(Reply::ok()).await;
    let url = format!("http://localhost:{}/", receiver.port());
    server.patch_endpoint(&application, &endpoint, json!({ "url": url })).await;
    server.resend(&application, &message, &endpoint).await;
    server.until_state((&application, &message, &endpoint), "delivered").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f060_every_status_but_410_is_tried_again() {
    const STATUSES: [u16; 17] =
        [400, 401, 403, 404, 408, 409, 413, 421, 425, 429, 500, 501, 502, 503, 504, 507, 520];
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let receiver = Receiver::with(move |request| {
        let count = seen.entry(request.path()).or_default();
        *count += 1;
        match request.path().trim_start_matches('/').parse() {
            Ok(status) if *count == 1 => Reply::status(status),
            _ => Reply::ok(),
        }
    })
    .await;
    // Its own, because a reset of a connection that was used before says nothing of the request:
    // that is sent once more within the attempt.
    let mut is_first = true;
    let resetting = Receiver::with(move |_| match std::mem::take(&mut is_first) {
        true => Reply::reset(),
        false => Reply::ok(),
    })
    .await;
    let server = Setup::new().start();
    let application = server.application().await;
    let urls = STATUSES.iter().map(|status| receiver.url(&format!("/{status}")));
    let mut endpoints = Vec::new();
    for url in urls.chain([resetting.url("/")]) {
        endpoints.push(server.endpoint(&application, &url, json!({})).await);
    }
    let message = server.message(&application, "{}").await;
    for endpoint in &endpoints {
        let standing = server.until_state((&application, &message, endpoint), "delivered").await;
        assert_eq!(standing["attempts"], 2, "{standing}");
        assert_eq!(server.endpoint_now(&application, endpoint).await["disabled"], false);
    }
    assert_eq!(receiver.requests().len(), 2 * STATUSES.len());
    assert_eq!(resetting.requests().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn f060_refused_connections_and_broken_tls_are_tried_again() {
    let garbage = Receiver::always(Reply::garbage()).await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = Setup::new().start();
    let application = server.application().await;
    let urls = [
        ("connect", format!("http://{free}/")),
        ("tls", format!("https://{}/", speaks_no_tls().await)),
        ("protocol", garbage.url("/")),
    ];
    let mut wanted = BTreeMap::new();
    for (outcome, url) in urls {
        wanted.insert(server.endpoint(&application, &url, json!({})).await, outcome);
    }
    let message = server.message(&application, "{}").await;
    for endpoint in wanted.keys() {
        let dead = server.until_state((&application, &message, endpoint), "dead_letter").await;
        assert_eq!(dead["attempts"], 4, "{dead}");
    }
    for attempt in server.attempts(&application, &message).await {
        let outcome = wanted[attempt["endpointId"].as_str().unwrap()];
        assert_eq!(attempt["outcome"], outcome, "{attempt}");
        let verdict = if attempt["attemptNumber"] == 4 { "dead_letter" } else { "retry" };
        assert_eq!(attempt["verdict"], verdict, "{attempt}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f060_410_stops_at_once_and_disables_with_a_notice() {
    let receiver = Receiver::always(Reply::status(410)).await;
    let server = Setup::new().start();
    let application = server.application().await;
    let endpoint = server.endpoint(&application, &receiver.url("/"), json!({})).await;
    let first = server.message(&application, "{}").await;
    let dead = server.until_state((&application, &first, &endpoint), "dead_letter").await;
    assert_eq!((&dead["attempts"], &dead["cause"]), (&json!(1), &json!("gone")));
    let shown = server.endpoint_now(&application, &endpoint).await;
    assert_eq!((&shown["disabled"], &shown["disabledReason"]), (&json!(true), &json!("gone")));
    let events = server.logged_until("endpoint.disabled").await;
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(
        (&events[0]["reason"], &events[0]["endpoint_id"]),
        (&json!("gone"), &json!(endpoint))
    );
    let second = server.message(&application, "{}").await;
    let held = server.until_state((&application, &second, &endpoint), "held").await;
    assert_eq!(held["attempts"], 0, "{held}");
    assert_eq!(server.status().await["endpoints_disabled"], 1);
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn f060_an_endpoint_can_name_statuses_that_are_final() {
    let receiver = Receiver::always(Reply::status(404)).await;
    let server = Setup::new().start();
    let application = server.application().await;
    let more = json!({ "policy": { "finalStatuses": [404, 422] } });
    let endpoint = server.endpoint(&application, &receiver.url("/"), more).await;
    let message = server.message(&application, "{}").await;
    let dead = server.until_state((&application, &message, &endpoint), "dead_letter").await;
    assert_eq!((&dead["attempts"], &dead["cause"]), (&json!(1), &json!("final: status_404")));
    assert_eq!(server.endpoint_now(&application, &endpoint).await["disabled"], false);
    assert_eq!(receiver.requests().len(), 1);
}

/// An endpoint with one early retry and one in half an hour, whose two attempts failed.
fn patient() -> Value {
    let retry = json!({ "kind": "schedule", "delaysMs": [50, HALF_AN_HOUR_MS], "jitter": 0.0 });
    json!({ "policy": { "retry": retry } })
}

#[tokio::test(flavor = "multi_thread")]
async fn f061_a_manual_retry_that_succeeds_cancels_the_planned_one() {
    let failed = Reply::status(500);
    let receiver = Receiver::in_order([failed.clone(), failed, Reply::ok()]).await;
    let server = Setup::new().start();
    let application = server.application().await;
    let endpoint = server.endpoint(&application, &receiver.url("/"), patient()).await;
    let message = server.message(&application, "{}").await;
    let twice =
        |standing: &Value| standing["attempts"] == 2 && standing["state"] == "awaiting_retry";
    server.standing_until(&application, &message, &endpoint, twice).await;
    server.resend(&application, &message, &endpoint).await;
    let done = server.until_state((&application, &message, &endpoint), "delivered").await;
    assert_eq!((&done["attempts"], &done["nextAttempt"]), (&json!(3), &Value::Null));
    let attempts = server.attempts(&application, &message).await;
    assert_eq!(numbers(&attempts), [1, 2, 3]);
    assert_eq!(attempts[2]["triggerType"], 1);
    assert_eq!(server.status().await["awaiting_retry"], 0);
    assert_eq!(receiver.requests().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn f061_a_manual_retry_that_fails_leaves_one_planned_retry() {
    let receiver = Receiver::always(Reply::status(500)).await;
    let server = Setup::new().start();
    let application = server.application().await;
    let endpoint = server.endpoint(&application, &receiver.url("/"), patient()).await;
    let message = server.message(&application, "{}").await;
    let after = |count: u64| {
        move |standing: &Value| {
            standing["attempts"] == count && standing["state"] == "awaiting_retry"
        }
    };
    let planned = server.standing_until(&application, &message, &endpoint, after(2)).await;
    server.resend(&application, &message, &endpoint).await;
    let standing = server.standing_until(&application, &message, &endpoint, after(3)).await;
    assert_eq!(standing["nextAttempt"], planned["nextAttempt"]);
    assert_eq!(numbers(&server.attempts(&application, &message).await), [1, 2, 3]);
    assert_eq!(server.status().await["awaiting_retry"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn f061_the_plan_goes_on_after_a_manual_retry() {
    let receiver = Receiver::always(Reply::status(500)).await;
    let server = Setup::new().start();
    let application = server.application().await;
    let retry = json!({ "kind": "schedule", "delaysMs": [50, 3_000, 50], "jitter": 0.0 });
    let more = json!({ "policy": { "retry": retry } });
    let endpoint = server.endpoint(&application, &receiver.url("/"), more).await;
    let message = server.message(&application, "{}").await;
    let twice =
        |standing: &Value| standing["attempts"] == 2 && standing["state"] == "awaiting_retry";
    server.standing_until(&application, &message, &endpoint, twice).await;
    server.resend(&application, &message, &endpoint).await;
    let dead = server.until_state((&application, &message, &endpoint), "dead_letter").await;
    assert_eq!(dead["attempts"], 5, "{dead}");
    let attempts = server.attempts(&application, &message).await;
    assert_eq!(numbers(&attempts), [1, 2, 3, 4, 5]);
    let triggers: Vec<_> = attempts.iter().map(|attempt| attempt["triggerType"].clone()).collect();
    assert_eq!(triggers, [0, 0, 1, 0, 0]);
    assert_eq!(receiver.requests().len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn f062_a_slow_receiver_has_its_time_unless_the_endpoint_is_given_less() {
    let slow = Receiver::always(Reply::ok().after(Duration::from_secs(4))).await;
    let server = Setup::new().start();
    let application = server.application().await;
    let patient = server.endpoint(&application, &slow.url("/patient"), json!({})).await;
    let more = json!({ "policy": { "timeoutMs": 500 } });
    let hasty = server.endpoint(&application, &slow.url("/hasty"), more).await;
    let message = server.message(&application, "{}").await;
    let done = server.until_state((&application, &message, &patient), "delivered").await;
    assert_eq!(done["attempts"], 1, "{done}");
    server.until_state((&application, &message, &hasty), "dead_letter").await;
    let attempts = server.attempts(&application, &message).await;
    let timeouts = attempts.iter().filter(|attempt| attempt["endpointId"] == hasty);
    assert_eq!(timeouts.filter(|attempt| attempt["outcome"] == "timeout").count(), 4);
    let requests = slow.requests();
    assert_eq!(requests.len(), 5);
    assert_eq!(by_message(&requests).len(), 1, "one webhook-id");
    let path = format!("/api/v1/app/{application}/endpoint/{hasty}");
    let body = json!({ "policy": { "timeoutMs": 60_001 } });
    let (status, answer) = server.api("PATCH", &path, body).await;
    assert!(status == 422 && answer.to_string().contains("60000"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn f064_ten_failures_in_a_minute_disable_nothing() {
    const MESSAGES: usize = 15;
    let mut replies = vec![Reply::status(500); 10];
    replies.push(Reply::ok());
    let receiver = Receiver::in_order(replies).await;
    let server =
        Setup::new().without("POSTHASTE_RETRY__DELAYS").without("POSTHASTE_RETRY__JITTER").start();
    let application = server.application().await;
    let endpoint = server.endpoint(&application, &receiver.url("/"), json!({})).await;
    for _ in 0..MESSAGES {
        server.message(&application, "{}").await;
    }
    // With waits of half a minute and more, only a recovery that is noticed brings them this soon.
    server.status_until(|status| status["delivered_last_hour"] == MESSAGES).await;
    assert!(!server.logged("breaker.opened").is_empty());
    assert!(!server.logged("breaker.closed").is_empty());
    assert_eq!(by_message(&receiver.requests()).len(), MESSAGES);
    assert_eq!(server.endpoint_now(&application, &endpoint).await["disabled"], false);
    assert!(server.logged("endpoint.disabled").is_empty());
    let health = server.health_until(&application, &endpoint, |it| it["breaker"] == "closed").await;
    assert_eq!(health["consecutiveFailures"], 0, "{health}");
}

#[tokio::test(flavor = "multi_thread")]
async fn f077_a_timeout_is_recorded_as_what_it_is() {
    let receiver = Receiver::always(Reply::hang()).await;
    let server = Setup::new()
        .with("POSTHASTE_RETRY__DELAYS", "")
        .with("POSTHASTE_HTTP__TIMEOUT", "1s")
        .start();
    let application = server.application().await;
    let endpoint = server.endpoint(&application, &receiver.url("/"), json!({})).await;
    let message = server.message(&application, "{}").await;
    let dead = server.until_state((&application, &message, &endpoint), "dead_letter").await;
    assert_eq!(dead["cause"], "exhausted: timeout");
    let attempts = server.attempts(&application, &message).await;
    assert_eq!(attempts.len(), 1);
    let attempt = &attempts[0];
    assert_eq!((&attempt["status"], &attempt["outcome"]), (&json!(2), &json!("timeout")));
    assert_eq!(attempt["responseStatusCode"], 0);
    assert!(attempt["responseDurationMs"].as_u64().unwrap() >= 1_000, "{attempt}");
    let response = attempt["response"].as_str().unwrap();
    assert!(response.contains("timeout") && response.contains("the answer"), "{response}");
    let (_, metrics) = server.api("GET", "/metrics", Value::Null).await;
    let metrics = metrics.as_str().unwrap();
    assert!(metrics.contains("posthaste_attempts_total{outcome=\"timeout\"} 1"), "{metrics}");
    assert!(metrics.contains("posthaste_attempts_total{outcome=\"success\"} 0"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_replayed_from_the_command_line() {
    const MESSAGES: usize = 6;
    let setup = Setup::new().with("POSTHASTE_RETRY__DELAYS", "50ms");
    let receiver = Receiver::always(Reply::status(503)).await;
    let server = setup.start();
    let application = server.application().await;
    let endpoint = server.endpoint(&application, &receiver.url("/"), json!({})).await;
    for _ in 0..MESSAGES {
        server.message(&application, "{}").await;
    }
    server.status_until(|status| status["dead_letter"] == MESSAGES).await;
    receiver.change_to(Reply::ok());
    // The breaker may still be open; replaying waits for its probe like everything else.
    let url = server.url();
    let token = common::token();
    let replay = ["replay", "--app", &application, "--endpoint", &endpoint, "--since", "1h"];
    let output = setup.run(&replay).args(["--url", &url, "--token", &token]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains(&format!("{MESSAGES} deliveries")), "{printed}");
    let done =
        |status: &Value| status["delivered_last_hour"] == MESSAGES && status["dead_letter"] == 0;
    server.status_until(done).await;
    let requests = by_message(&receiver.requests());
    assert_eq!(requests.len(), MESSAGES);
    assert!(requests.values().all(|count| *count == 3), "{requests:?}");
}

/// Of all processes together, one probe at a time; a good one lets everything go.
#[tokio::test(flavor = "multi_thread")]
async fn a_breaker_opens_probes_one_at_a_time_closes_and_drains() {
    const MESSAGES: usize = 30;
    let answer_after = Duration::from_millis(300);
    let receiver = Receiver::always(Reply::status(500)).await;
    let setup = Setup::new()
        .with("POSTHASTE_BREAKER__FAILURE_THRESHOLD", "3")
        .with("POSTHASTE_BREAKER__COOLDOWN", "100ms")
        .with("POSTHASTE_BREAKER__COOLDOWN_MAX", "400ms")
        .without("POSTHASTE_RETRY__DELAYS")
        .without("POSTHASTE_RETRY__JITTER");
    let server = setup.start();
    let worker = setup.worker().start();
    let application = server.application().await;
    let endpoint = server.endpoint(&application, &receiver.url("/"), json!({})).await;
    for _ in 0..3 {
        server.message(&application, "{}").await;
    }
    let opened = async {
        while server.logged("breaker.opened").is_empty()
            && worker.logged("breaker.opened").is_empty()
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, opened).await.unwrap();
    let health = server.health_until(&application, &endpoint, |it| it["breaker"] != "closed").await;
    assert!(health["consecutiveFailures"].as_u64().unwrap() >= 3, "{health}");
    assert!(server.status().await["breakers_open"] == 1);
    // From here on only probes come; each takes its time, so that two at once would show.
    let (sender, mut arrivals) = tokio::sync::mpsc::channel(64);
    receiver.change_script(move |_| {
        let _ = sender.try_send(Instant::now());
        Reply::status(500).after(answer_after)
    });
    for _ in 3..MESSAGES {
        server.message(&application, "{}").await;
    }
    let mut last: Option<Instant> = None;
    for _ in 0..5 {
        let arrived = tokio::time::timeout(PATIENCE, arrivals.recv()).await.unwrap().unwrap();
        if let Some(last) = last {
            let gap = arrived.duration_since(last);
            assert!(gap >= answer_after, "the next probe came {gap:?} after one that was out");
        }
        last = Some(arrived);
    }
    receiver.change_to(Reply::ok());
    server.status_until(|status| status["delivered_last_hour"] == MESSAGES).await;
    let health = server.health_until(&application, &endpoint, |it| it["breaker"] == "closed").await;
    assert_eq!(health["consecutiveFailures"], 0, "{health}");
    assert_eq!(server.status().await["dead_letter"], 0);
    assert_eq!(by_message(&receiver.requests()).len(), MESSAGES);
}
