//! Field cases of what goes over the wire: bytes, signatures, headers, answers.
#![expect(clippy::disallowed_methods, reason = "compares timestamps with the real time")]

mod common;

use common::Setup;
use common::facts::{OTHER_SECRET, SECRET, by_message, is_signed, numbers, speaks_no_tls};
use posthaste_testkit::{ReceivedRequest, Receiver, Reply, Step};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A receiver whose reply is told by the path, and by how many requests there came for that path.
async fn by_path(mut script: impl FnMut(&str, usize) -> Reply + Send + 'static) -> Receiver {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    Receiver::with(move |request| {
        let path = request.path();
        let count = seen.entry(path.clone()).or_default();
        *count += 1;
        script(&path, *count)
    })
    .await
}

/// The one delivery's requests, once `count` of them came.
fn to_path(requests: &[ReceivedRequest], path: &str) -> Vec<ReceivedRequest> {
    requests.iter().filter(|request| request.path() == path).cloned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn f004_every_attempt_carries_and_signs_the_published_bytes() {
    let payload = r#"{"b": 1, "a": "é 😊", "n": 1.0}"#;
    let setup = Setup::new().with("POSTHASTE_RETRY__DELAYS", "1s");
    let receiver = Receiver::in_order([Reply::status(500), Reply::ok()]).await;
    let server = setup.start();
    let application = server.application().await;
    let more = json!({ "secret": SECRET });
    let endpoint = server.endpoint(&application, &receiver.url("/"), more).await;
    let message = server.message(&application, payload).await;
    server.status_until(|status| status["awaiting_retry"] == 1).await;
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let server = setup.start();
    server.until_state((&application, &message, &endpoint), "delivered").await;
    server.resend(&application, &message, &endpoint).await;
    let requests = receiver.wait_for(3).await;
    for request in &requests {
        assert_eq!(request.body, payload.as_bytes());
        assert_eq!(request.header("webhook-id").as_ref(), Some(&message));
        assert!(is_signed(request, SECRET), "{}", request.head_text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f005_key_order_number_text_and_doubles_survive_the_store() {
    let payload = r#"{"z":1,"a":2,"m":{"y":1.0,"b":9007199254740993},"a2":1e2,"dup":1,"dup":2}"#;
    let receiver = Receiver::in_order([Reply::status(500), Reply::ok()]).await;
    let server = Setup::new().start();
    let application = server.application().await;
    let more = json!({ "secret": SECRET });
    server.endpoint(&application, &receiver.url("/"), more).await;
    let message = server.message(&application, payload).await;
    for request in receiver.wait_for(2).await {
        assert_eq!(request.body, payload.as_bytes());
        assert!(is_signed(&request, SECRET));
    }
    let path = format!("{}/api/v1/app/{application}/msg/{message}", server.url());
    let shown = tokio::task::spawn_blocking(move || {
        let bearer = format!("Bearer {}", common::token());
        let answer = ureq::get(path).header("authorization", bearer).call();
        answer.unwrap().body_mut().read_to_string().unwrap()
    });
    let shown = shown.await.unwrap();
    assert!(shown.contains(payload), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn f017_a_retry_is_signed_with_the_secret_of_its_own_time() {
    let receiver = Receiver::in_order([Reply::status(500), Reply::ok()]).await;
    let server = Setup::new().with("POSTHASTE_RETRY__DELAYS", "2s").start();
    let application = server.application().await;
    let more = json!({ "secret": SECRET });
    let endpoint = server.endpoint(&application, &receiver.url("/"), more).await;
    server.message(&application, "{}").await;
    let first = receiver.next_request().await;
    let path = format!("/api/v1/app/{application}/endpoint/{endpoint}/secret/rotate");
    let body = json!({ "key": OTHER_SECRET, "gracePeriodSeconds": 0 });
    let (status, answer) = server.api("POST", &path, body).await;
    assert_eq!(status, 200, "{answer}");
    let second = receiver.next_request().await;
    assert!(is_signed(&first, SECRET) && !is_signed(&first, OTHER_SECRET));
    assert!(is_signed(&second, OTHER_SECRET) && !is_signed(&second, SECRET));
    assert_eq!(first.header("webhook-id"), second.header("webhook-id"));
}

#[tokio::test(flavor = "multi_thread")]
async fn f019_f020_the_timestamp_is_in_seconds_and_of_the_attempt() {
    let receiver = Receiver::in_order([Reply::status(500), Reply::ok()]).await;
    let server = Setup::new().with("POSTHASTE_RETRY__DELAYS", "2s").start();
    let application = server.application().await;
    let more = json!({ "secret": SECRET });
    server.endpoint(&application, &receiver.url("/"), more).await;
    server.message(&application, "{}").await;
    let mut stamps = Vec::new();
    for _ in 0..2 {
        let request = receiver.next_request().await;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let stamp = request.header("webhook-timestamp").unwrap();
        assert!(stamp.len() == 10 && stamp.bytes().all(|byte| byte.is_ascii_digit()), "{stamp}");
        assert!(is_signed(&request, SECRET));
        let stamp: u64 = stamp.parse().unwrap();
        assert!(stamp.abs_diff(now) <= 2, "{stamp} at {now}");
        stamps.push(stamp);
    }
    assert!(stamps[1] > stamps[0], "{stamps:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn f032_nul_is_delivered_as_it_was_published() {
    let receiver = Receiver::in_order([Reply::status(500), Reply::ok()]).await;
    let server = Setup::new().start();
    let application = server.application().await;
    let more = json!({ "secret": SECRET });
    server.endpoint(&application, &receiver.url("/"), more).await;
    let escaped = r#"{"diff":"a\u0000b","lit":"\\u0000"}"#;
    server.message(&application, escaped).await;
    for request in receiver.wait_for(2).await {
        assert_eq!(request.body, escaped.as_bytes());
        assert!(is_signed(&request, SECRET));
    }
    // A real zero byte can only be in a body that is no JSON.
    let path = format!("/api/v1/app/{application}/msg");
    let body = json!({
        "eventType": "raw.event",
        "payload": {},
        "transformationsParams": { "rawPayload": "a\0b" },
    });
    let (status, answer) = server.api("POST", &path, body).await;
    assert_eq!(status, 202, "{answer}");
    let raw = receiver.wait_for(3).await.pop().unwrap();
    assert_eq!(&raw.body[..], b"a\0b");
    assert!(is_signed(&raw, SECRET));
    let (status, answer) = server
        .api_raw("POST", &path, Some("{\"eventType\":\"x\",\"payload\":{\"a\":\"\0\"}}".into()))
        .await;
    assert!((400..500).contains(&status), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn f034_every_attempt_has_a_user_agent() {
    let receiver = Receiver::in_order([Reply::status(500), Reply::ok()]).await;
    let own = Receiver::always(Reply::ok()).await;
    let server = Setup::new().start();
    let application = server.application().await;
    server.endpoint(&application, &receiver.url("/"), json!({})).await;
    let more = json!({ "policy": { "userAgent": "Example-Hooks/2.0" } });
    server.endpoint(&application, &own.url("/"), more).await;
    server.message(&application, "{}").await;
    let wanted = concat!("posthaste/", env!("CARGO_PKG_VERSION"), " (+");
    for request in receiver.wait_for(2).await {
        let agent = request.header("user-agent").unwrap();
        assert!(agent.starts_with(wanted) && agent.ends_with(')'), "{agent}");
    }
    let agent = own.next_request().await.header("user-agent");
    assert_eq!(agent.as_deref(), Some("Example-Hooks/2.0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn f035_a_connection_that_the_receiver_closed_costs_no_attempt() {
    const COUNT: usize = 40;
    let idle = Duration::from_millis(100);
    let reply = Reply::ok().then(Step::Wait(idle)).then(Step::Close);
    let receiver = Receiver::always(reply).await;
    let server = Setup::new().start();
    let application = server.application().await;
    let endpoint = server.endpoint(&application, &receiver.url("/"), json!({})).await;
    for number in 0..COUNT {
        server.message(&application, &format!(r#"{{"n":{number}}}"#)).await;
        // Now a little before the receiver closes, now a little after it did.
        tokio::time::sleep(
            idle - Duration::from_millis(10) + Duration::from_millis(number as u64 % 20),
        )
        .await;
    }
    let status = server.status_until(|status| status["delivered_last_hour"] == COUNT).await;
    assert_eq!(status["failed_attempts_last_hour"], 0, "{status}");
    let requests = by_message(&receiver.requests());
    assert_eq!(requests.len(), COUNT);
    let path = format!("/api/v1/app/{application}/attempt/endpoint/{endpoint}?limit=250");
    let (_, attempts) = server.api("GET", &path, Value::Null).await;
    let attempts = attempts["data"].as_array().unwrap();
    assert_eq!(numbers(attempts), vec![1; COUNT]);
    assert!(receiver.connections() > 1, "the receiver closed none");
}

#[tokio::test(flavor = "multi_thread")]
async fn f038_an_answer_too_big_to_keep_is_delivered_once() {
    let receiver = by_path(|path, _| match path {
        "/text" => Reply::with_body(200, "x".repeat(1 << 20)),
        "/endless" => Reply::endless_body(),
        "/not-utf8" => Reply::with_body(200, &b"\xff\xfe\xfd"[..]),
        "/nul" => Reply::with_body(200, &b"a\0b"[..]),
        _ => Reply::many_headers(300, 4_096),
    })
    .await;
    let server = Setup::new().with("POSTHASTE_HTTP__TIMEOUT", "5s").start();
    let application = server.application().await;
    let paths = ["/text", "/endless", "/not-utf8", "/nul", "/headers"];
    let mut endpoints = BTreeMap::new();
    for path in paths {
        let id = server.endpoint(&application, &receiver.url(path), json!({})).await;
        endpoints.insert(id, path);
    }
    let messages = 10;
    let mut last = String::new();
    for _ in 0..messages {
        last = server.message(&application, "{}").await;
    }
    let all = messages * paths.len();
    let status = server.status_until(|status| status["delivered_last_hour"] == all).await;
    assert_eq!(status["failed_attempts_last_hour"], 0, "{status}");
    assert_eq!(receiver.requests().len(), all);
    for attempt in server.attempts(&application, &last).await {
        let path = endpoints[attempt["endpointId"].as_str().unwrap()];
        let kept = attempt["response"].as_str().unwrap();
        let cut = matches!(path, "/text" | "/endless");
        assert_eq!(attempt["responseTruncated"], cut, "{path}");
        assert!(kept.len() <= 64 * 1024, "{path}: {}", kept.len());
        match path {
            "/nul" => assert_eq!(kept, "a\0b"),
            "/not-utf8" => assert_eq!(kept, "//79"),
            _ => {}
        }
    }
    let memory = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let peak = memory.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches("kB").trim().parse().unwrap();
    assert!(peak < 256 * 1024, "{peak} kB");
}

#[tokio::test(flavor = "multi_thread")]
async fn f039_every_2xx_is_delivered_and_nothing_else() {
    const GOOD: [u16; 8] = [200, 201, 202, 203, 204, 205, 206, 299];
    const BAD: [u16; 5] = [300, 302, 304, 307, 404];
    let receiver = by_path(|path, _| match path {
        "/100" => Reply::status(100).followed_by(Reply::ok()),
        "/103" => Reply::status(103).followed_by(Reply::status(204)),
        "/199" => Reply::status(199).then(Step::Close),
        path => Reply::status(path.trim_start_matches('/').parse().unwrap()),
    })
    .await;
    let server = Setup::new().with("POSTHASTE_RETRY__DELAYS", "").start();
    let application = server.application().await;
    let mut endpoints = BTreeMap::new();
    for status in GOOD.into_iter().chain(BAD).chain([100, 103, 199]) {
        let url = receiver.url(&format!("/{status}"));
        endpoints.insert(status, server.endpoint(&application, &url, json!({})).await);
    }
    let message = server.message(&application, "{}").await;
    for (status, endpoint) in &endpoints {
        let good = GOOD.contains(status) || [100, 103].contains(status);
        let state = if good { "delivered" } else { "dead_letter" };
        let standing = server.until_state((&application, &message, endpoint), state).await;
        assert_eq!(standing["attempts"], 1, "{status}");
    }
    assert_eq!(receiver.requests().len(), endpoints.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn f055_a_password_in_the_url_is_sent_as_a_header_and_shown_to_nobody() {
    let receiver = Receiver::always(Reply::status(500)).await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = Setup::new().start();
    let application = server.application().await;
    let address = receiver.address();
    let mut endpoints = Vec::new();
    let no_tls = speaks_no_tls().await;
    for (scheme, address) in [("http", address), ("http", free), ("https", no_tls)] {
        let origin = format!("{scheme}://user:p%40ss@{address}");
        let url = format!("{origin}/x?token=abcdef");
        endpoints.push(server.endpoint(&application, &url, json!({})).await);
    }
    let message = server.message(&application, "{}").await;
    server.status_until(|status| status["dead_letter"] == 3).await;
    let requests = to_path(&receiver.requests(), "/x?token=abcdef");
    assert_eq!(requests.len(), 4);
    for request in requests {
        assert_eq!(request.header("authorization").as_deref(), Some("Basic dXNlcjpwQHNz"));
        let head = request.head_text();
        assert!(!head.contains("p%40ss") && !head.contains("p@ss"), "{head}");
        assert_eq!(request.header("host"), Some(address.to_string()));
    }
    let attempts = server.attempts(&application, &message).await;
    assert_eq!(attempts.len(), 12);
    for attempt in &attempts {
        let shown = attempt.to_string();
        assert!(shown.contains("***@") && shown.contains("token=***"), "{shown}");
        assert!(!shown.contains("abcdef"), "{shown}");
    }
    let mut shown = Value::Array(attempts).to_string();
    for endpoint in &endpoints {
        shown.push_str(&server.endpoint_now(&application, endpoint).await.to_string());
        let path = format!("/api/v1/app/{application}/endpoint/{endpoint}/health");
        shown.push_str(&server.api("GET", &path, Value::Null).await.1.to_string());
    }
    let path = format!("/api/v1/app/{application}/msg/{message}/endpoint");
    shown.push_str(&server.api("GET", &path, Value::Null).await.1.to_string());
    for text in ["p%40ss", "p@ss", "dXNlcjpwQHNz"] {
        assert!(!shown.contains(text), "{text} in {shown}");
        assert!(!server.log().join("\n").contains(text), "{text} in the log");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f097_a_failure_of_one_endpoint_sends_nothing_to_the_others_again() {
    let receiver = by_path(|path, count| match (path, count) {
        ("/b", 1) => Reply::status(500),
        ("/c", _) => Reply::status(410),
        _ => Reply::ok(),
    })
    .await;
    let server = Setup::new().start();
    let application = server.application().await;
    let mut endpoints = Vec::new();
    for path in ["/a", "/b", "/c"] {
        endpoints.push(server.endpoint(&application, &receiver.url(path), json!({})).await);
    }
    let message = server.message(&application, "{}").await;
    let states = ["delivered", "delivered", "dead_letter"];
    for ((endpoint, state), attempts) in endpoints.iter().zip(states).zip([1, 2, 1]) {
        let standing = server.until_state((&application, &message, endpoint), state).await;
        assert_eq!(standing["attempts"], attempts, "{standing}");
    }
    let requests = receiver.requests();
    for (path, count) in [("/a", 1), ("/b", 2), ("/c", 1)] {
        assert_eq!(to_path(&requests, path).len(), count, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f098_the_clock_of_an_attempt_starts_with_its_connection() {
    const COUNT: usize = 300;
    // With ten at a time the last of them waits for longer than its exchange may take.
    let receiver = Receiver::always(Reply::ok().after(Duration::from_millis(80))).await;
    let server = Setup::new()
        .with("POSTHASTE_WORKER__IN_FLIGHT_MAX", "10")
        .with("POSTHASTE_WORKER__IN_FLIGHT_PER_ENDPOINT_MAX", "10")
        .start();
    let application = server.application().await;
    let more = json!({ "policy": { "timeoutMs": 2_000 } });
    server.endpoint(&application, &receiver.url("/"), more).await;
    let publishing = (0..COUNT).map(|_| server.message(&application, "{}"));
    for published in publishing {
        published.await;
    }
    let status = server.status_until(|status| status["delivered_last_hour"] == COUNT).await;
    assert_eq!(status["failed_attempts_last_hour"], 0, "{status}");
    assert_eq!(receiver.requests().len(), COUNT);
}

#[tokio::test(flavor = "multi_thread")]
async fn f102_secret_headers_are_sent_and_masked_and_reserved_ones_refused() {
    let receiver = Receiver::always(Reply::ok()).await;
    let server = Setup::new().start();
    let application = server.application().await;
    let headers = json!({
        "AUTHORIZATION": "Bearer hidden-1",
        "x-api-key": "hidden-2",
        "Cookie": "session=hidden-3",
        "X-Shop": "open",
    });
    let more = json!({ "headers": headers });
    let endpoint = server.endpoint(&application, &receiver.url("/"), more).await;
    let message = server.message(&application, "{}").await;
    let request = receiver.next_request().await;
    for (name, value) in headers.as_object().unwrap() {
        assert_eq!(request.header(name).as_deref(), value.as_str(), "{name}");
    }
    server.until_state((&application, &message, &endpoint), "delivered").await;
    let one = format!("/api/v1/app/{application}/endpoint/{endpoint}");
    let (_, shown) = server.api("GET", &format!("{one}/headers"), Value::Null).await;
    assert_eq!(shown["headers"], json!({ "X-Shop": "open" }), "{shown}");
    let mut names: Vec<String> = serde_json::from_value(shown["sensitive"].clone()).unwrap();
    names.sort();
    assert_eq!(names, ["AUTHORIZATION", "Cookie", "x-api-key"]);
    let attempts = Value::Array(server.attempts(&application, &message).await).to_string();
    let endpoint = server.endpoint_now(&application, &endpoint).await.to_string();
    assert!(!attempts.contains("hidden-") && !endpoint.contains("hidden-"), "{attempts}{endpoint}");
    for name in ["Host", "content-length", "Webhook-Id", "webhook-anything"] {
        let body = json!({ "headers": { name: "x" } });
        let (status, answer) = server.api("PUT", &format!("{one}/headers"), body).await;
        assert!(status == 422 && answer.to_string().contains(name), "{name}: {answer}");
    }
}
