//! The courier against receivers on plain HTTP/1.1.

use crate::common::*;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use posthaste_core::limits::{ANSWER_BODY_BYTES_KEPT, ANSWER_HEAD_BYTES_MAX};
use posthaste_core::outcome::{Answer, FailureKind, OutcomeClass, Phase, Response};
use posthaste_core::time::Dice;
use posthaste_engine::courier::{CourierSettings, Errand};
use posthaste_testkit::{PATIENCE, Receiver, Reply, Step, TestDice};
use std::time::Duration;

#[tokio::test]
async fn a_request_arrives_byte_for_byte() {
    let receiver = Receiver::always(Reply::with_body(202, "thanks")).await;
    let target = target(&receiver.url("/hook/%7Eme?token=a%20b&x=%C3%BC"));
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    headers.insert("webhook-id", HeaderValue::from_static("msg_1"));
    let body = Bytes::from_static(b"{ \"n\": 1.0 }\n");
    let outcome =
        courier().send(&Errand { headers, body: body.clone(), ..errand(&target, "") }).await;

    assert_eq!(outcome.status(), Some(202));
    assert_eq!(outcome.remote, Some("127.0.0.1".parse().unwrap()));
    let Answer::Response(response) = &outcome.answer else { panic!("{outcome:?}") };
    assert_eq!(response.body, "thanks");
    assert!(!response.body_cut);
    assert!(outcome.timing.connect.is_some() && outcome.timing.first_byte.is_some());
    assert_eq!(outcome.timing.tls, None);

    let request = receiver.next_request().await;
    assert_eq!(request.method(), "POST");
    assert_eq!(request.path(), "/hook/%7Eme?token=a%20b&x=%C3%BC");
    assert_eq!(request.body, body);
    assert_eq!(request.header("host"), Some(receiver.address().to_string()));
    assert_eq!(request.header("content-length"), Some(body.len().to_string()));
    assert_eq!(request.header("transfer-encoding"), None);
    assert_eq!(request.header("webhook-id").as_deref(), Some("msg_1"));
    assert!(request.headers().iter().all(|(name, _)| *name == name.to_ascii_lowercase()));
}

#[tokio::test]
async fn an_empty_body_has_a_length_and_a_get_has_none() {
    let receiver = Receiver::always(Reply::ok()).await;
    let target = target(&receiver.url("/"));
    let courier = courier();
    assert_success(&courier.send(&errand(&target, "")).await);
    let get = Errand { method: Method::GET, ..errand(&target, "") };
    assert_success(&courier.send(&get).await);
    let requests = receiver.wait_for(2).await;
    assert_eq!(requests[0].header("content-length").as_deref(), Some("0"));
    assert_eq!(requests[1].method(), "GET");
    assert_eq!(requests[1].header("content-length"), None);
}

#[tokio::test]
async fn f034_every_request_says_who_we_are() {
    let receiver = Receiver::always(Reply::status(500)).await;
    let target = target(&receiver.url("/"));
    let courier = courier();
    courier.send(&errand(&target, "1")).await;
    courier.send(&errand(&target, "2")).await;
    let mut headers = HeaderMap::new();
    headers.insert("user-agent", HeaderValue::from_static("acme-hooks/7"));
    courier.send(&Errand { headers, ..errand(&target, "3") }).await;

    let agents: Vec<_> =
        receiver.requests().iter().filter_map(|request| request.header("user-agent")).collect();
    let own = format!(
        "posthaste/{} (+https://github.com/posthaste/posthaste)",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(agents, [own.as_str(), own.as_str(), "acme-hooks/7"]);
}

#[tokio::test]
async fn a_connection_is_used_again() {
    let receiver = Receiver::always(Reply::with_body(200, "ok")).await;
    let courier = courier();
    for _ in 0..20 {
        assert_success(&post(&courier, &receiver.url("/"), "x").await);
    }
    assert_eq!(receiver.connections(), 1);
    let outcome = post(&courier, &receiver.url("/"), "x").await;
    assert_eq!((outcome.timing.dns, outcome.timing.connect), (None, None));
}

#[tokio::test]
async fn idle_connections_are_bounded_and_closed_in_time() {
    let settings = CourierSettings {
        idle_per_host_max: 2,
        idle_for: Duration::from_millis(200),
        ..CourierSettings::default()
    };
    let courier = courier_with(settings, "127.0.0.1", ScriptedResolver::new(Vec::new()));
    let receiver = Receiver::always(Reply::ok().after(Duration::from_millis(100))).await;
    let url = receiver.url("/");
    let burst = || async {
        let six: Vec<_> = (0..6)
            .map(|_| {
                let (courier, url) = (courier.clone(), url.clone());
                tokio::spawn(async move { post(&courier, &url, "x").await })
            })
            .collect();
        for sent in six {
            assert_success(&sent.await.unwrap());
        }
    };
    burst().await;
    assert_eq!(receiver.connections(), 6);
    burst().await;
    assert_eq!(receiver.connections(), 10, "two of six connections were kept");
    let all_closed = async {
        while receiver.open_connections() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, all_closed).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f035_a_kept_connection_that_was_just_closed_is_not_a_failure() {
    const DELIVERIES: usize = 500;
    let dice = TestDice::seeded(35);
    let mut seen = std::collections::HashMap::new();
    // The first copy of every third message dies with its connection, if that was used before;
    // after the others the connection is closed a random moment later.
    let receiver = Receiver::with(move |request| {
        let copies = seen.entry(request.body.clone()).or_insert(0);
        *copies += 1;
        let roll = dice.roll();
        let pause = Duration::from_micros(roll % 2_000);
        match roll % 3 {
            0 if *copies == 1 && !request.is_first_on_connection => Reply::close(),
            1 => Reply::ok().then(Step::Wait(pause)).then(Step::Reset),
            _ => Reply::ok().then(Step::Wait(pause)).then(Step::Close),
        }
    })
    .await;
    let courier = courier();
    let pauses = TestDice::seeded(53);
    for number in 0..DELIVERIES {
        let outcome = post(&courier, &receiver.url("/"), &format!("message {number}")).await;
        assert_success(&outcome);
        tokio::time::sleep(Duration::from_micros(pauses.roll() % 2_000)).await;
    }
    assert!(receiver.requests().len() >= DELIVERIES);
}

#[tokio::test]
async fn f035_a_request_that_dies_on_a_kept_connection_goes_out_again_once() {
    for death in [Reply::close(), Reply::reset()] {
        let receiver = Receiver::in_order([Reply::ok(), death, Reply::ok()]).await;
        let courier = courier();
        assert_success(&post(&courier, &receiver.url("/"), "first").await);
        assert_success(&post(&courier, &receiver.url("/"), "second").await);
        let requests = receiver.requests();
        let came: Vec<_> = requests.iter().map(|r| (r.connection, r.body.as_ref())).collect();
        assert_eq!(came, [(1, &b"first"[..]), (1, b"second"), (2, b"second")]);
    }
}

#[tokio::test]
async fn f035_a_failure_on_a_fresh_connection_is_a_failure() {
    for (death, kind) in
        [(Reply::close(), FailureKind::Closed), (Reply::reset(), FailureKind::Closed)]
    {
        let receiver = Receiver::always(death).await;
        let outcome = post(&courier(), &receiver.url("/"), "x").await;
        assert_eq!((failure(&outcome).kind, failure(&outcome).phase), (kind, Phase::Headers));
        assert_eq!(receiver.requests().len(), 1);
    }
}

#[tokio::test]
async fn f035_a_half_answer_on_a_kept_connection_is_a_failure() {
    let half = Reply::raw("HTTP/1.1 200 O").then(Step::Close);
    let receiver = Receiver::in_order([Reply::ok(), half]).await;
    let courier = courier();
    assert_success(&post(&courier, &receiver.url("/"), "first").await);
    let outcome = post(&courier, &receiver.url("/"), "second").await;
    assert_eq!(failure(&outcome).kind, FailureKind::Closed);
    assert_eq!(receiver.requests().len(), 2);
}

#[tokio::test]
async fn f038_an_answer_of_any_size_is_delivered_once_and_cut() {
    let gibibyte = "HTTP/1.1 200 OK\r\ncontent-length: 1073741824\r\n\r\n";
    let mebibyte = vec![b'm'; 1024 * 1024];
    let invalid = b"\xFF\xFE\xC0 not UTF-8".to_vec();
    let nuls = b"a\0b\0".to_vec();
    let cases = [
        (Reply::with_body(200, mebibyte.clone()), mebibyte[..ANSWER_BODY_BYTES_KEPT].to_vec()),
        (
            Reply::raw(gibibyte).then(Step::Repeat(vec![b'g'; 65_536].into())),
            vec![b'g'; ANSWER_BODY_BYTES_KEPT],
        ),
        (Reply::with_body(200, invalid.clone()), invalid),
        (Reply::with_body(200, nuls.clone()), nuls),
        (Reply::many_headers(300, 4_096), Vec::new()),
    ];
    let courier = courier();
    for (reply, body) in cases {
        let receiver = Receiver::always(reply).await;
        let outcome = post(&courier, &receiver.url("/"), "x").await;
        assert_success(&outcome);
        let Answer::Response(response) = outcome.answer else { panic!("no response") };
        assert_eq!(response.body_cut, body.len() == ANSWER_BODY_BYTES_KEPT);
        assert_eq!(response.body, body);
        assert_eq!(receiver.requests().len(), 1);
    }
}

#[tokio::test]
async fn an_answer_of_medium_size_is_cut_and_keeps_the_connection() {
    let receiver = Receiver::always(Reply::with_body(200, vec![b'm'; 60_000])).await;
    let courier = courier();
    for _ in 0..3 {
        let outcome = post(&courier, &receiver.url("/"), "x").await;
        let Answer::Response(response) = outcome.answer else { panic!("no response") };
        assert_eq!(response.body.len(), ANSWER_BODY_BYTES_KEPT);
        assert!(response.body_cut);
    }
    assert_eq!(receiver.connections(), 1);
}

#[tokio::test]
async fn f039_every_2xx_is_a_success_and_nothing_else() {
    let courier = courier();
    for status in [200, 201, 202, 203, 204, 205, 206, 226, 299] {
        let receiver = Receiver::always(Reply::status(status)).await;
        for _ in 0..2 {
            let outcome = post(&courier, &receiver.url("/"), "x").await;
            assert_success(&outcome);
            assert_eq!(outcome.status(), Some(status));
        }
        assert_eq!((receiver.requests().len(), receiver.connections()), (2, 1));
    }
    for status in [300, 301, 302, 303, 304, 307, 308, 400, 404, 410, 429, 500, 503, 599, 999] {
        let receiver = Receiver::always(Reply::status(status)).await;
        let outcome = post(&courier, &receiver.url("/"), "x").await;
        assert_eq!(outcome.class(), OutcomeClass::Status(status));
        assert_eq!(receiver.requests().len(), 1);
    }
}

#[tokio::test]
async fn f039_interim_answers_are_not_the_answer() {
    let courier = courier();
    for (interim, status) in [(100, 200), (103, 204), (102, 200)] {
        let answer = Reply::status(status).after(Duration::from_millis(20));
        let reply = Reply::status(interim).followed_by(answer);
        let receiver = Receiver::always(reply).await;
        let outcome = post(&courier, &receiver.url("/"), "x").await;
        assert_success(&outcome);
        assert_eq!(outcome.status(), Some(status));
        assert_eq!(receiver.requests().len(), 1);
    }
    // 199 is interim too: what never comes is the answer.
    let receiver = Receiver::always(Reply::status(199).then(Step::Close)).await;
    let outcome = post(&courier, &receiver.url("/"), "x").await;
    assert_eq!(failure(&outcome).kind, FailureKind::Closed);
    let receiver = Receiver::always(Reply::with_headers(101, &[("upgrade", "x")])).await;
    let outcome = post(&courier, &receiver.url("/"), "x").await;
    assert_eq!(outcome.class(), OutcomeClass::Status(101));
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_is_not_followed() {
    let elsewhere = Receiver::always(Reply::ok()).await;
    let location = elsewhere.url("/");
    let receiver = Receiver::always(Reply::with_headers(307, &[("location", &location)])).await;
    let outcome = post(&courier(), &receiver.url("/"), "x").await;
    assert_eq!(outcome.class(), OutcomeClass::Status(307));
    assert_eq!(elsewhere.connections(), 0);
}

#[tokio::test]
async fn retry_after_is_handed_on_as_it_came() {
    let reply = Reply::with_headers(429, &[("Retry-After", "Fri, 31 Dec 2027 23:59:59 GMT")]);
    let receiver = Receiver::always(reply).await;
    let outcome = post(&courier(), &receiver.url("/"), "x").await;
    assert_eq!(outcome.retry_after(), Some("Fri, 31 Dec 2027 23:59:59 GMT"));
    let long = "9".repeat(5_000);
    receiver.change_to(Reply::with_headers(503, &[("retry-after", &long)]));
    let outcome = post(&courier(), &receiver.url("/"), "x").await;
    assert_eq!((outcome.status(), outcome.retry_after()), (Some(503), None));
}

#[tokio::test]
async fn f062_a_slow_receiver_is_waited_for_as_long_as_it_may_take() {
    let receiver = Receiver::always(Reply::ok().after(Duration::from_millis(700))).await;
    let target = target(&receiver.url("/"));
    let courier = courier();
    assert_success(&courier.send(&errand(&target, "x")).await);
    assert_eq!(receiver.requests().len(), 1);
    let hurried = Errand { timeout: Duration::from_millis(300), ..errand(&target, "x") };
    let outcome = courier.send(&hurried).await;
    assert_eq!(outcome.class(), OutcomeClass::Failure(FailureKind::Timeout));
    assert_eq!(receiver.requests().len(), 2);
}

#[tokio::test]
async fn f077_a_timeout_is_no_success_and_says_where() {
    let timeout = Duration::from_millis(300);
    let big = "b".repeat(32 * 1024 * 1024);
    let cases = [
        (Reply::hang(), "x", Phase::Headers),
        (Reply::raw("HTTP/1.1 200 OK\r\ncontent-le").then(Step::Hang), "x", Phase::Headers),
        (Reply::dripping_body(Duration::from_millis(50)), "x", Phase::Body),
    ];
    let courier = courier();
    for (reply, body, phase) in cases {
        let receiver = Receiver::always(reply).await;
        let target = target(&receiver.url("/"));
        let outcome = courier.send(&Errand { timeout, ..errand(&target, body) }).await;
        assert_eq!(
            (failure(&outcome).kind, failure(&outcome).phase),
            (FailureKind::Timeout, phase)
        );
        assert_eq!(outcome.status(), None);
        assert!(outcome.timing.total >= timeout);
    }
    // Nobody reads: the socket's buffers fill and the request stays half sent.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = target(&format!("http://{}/", listener.local_addr().unwrap()));
    let outcome = courier.send(&Errand { timeout, ..errand(&target, &big) }).await;
    assert_eq!(
        (failure(&outcome).kind, failure(&outcome).phase),
        (FailureKind::Timeout, Phase::Send)
    );
}

#[tokio::test]
async fn a_receiver_may_do_anything() {
    const SECOND: Duration = Duration::from_secs(1);
    let timeout = Duration::from_millis(1_500);
    let half_chunk = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab";
    let bad_chunk = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nab\r\n";
    let short = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc";
    let huge_line = format!("HTTP/1.1 200 {}", "y".repeat(3 * ANSWER_HEAD_BYTES_MAX));
    let two_lengths = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab";
    use FailureKind::{Closed, Protocol, Timeout};
    let cases = [
        ("hangs", Reply::hang(), Some(Timeout)),
        ("drips the head", Reply::dripping_head(SECOND), Some(Timeout)),
        ("drips the body", Reply::dripping_body(SECOND), Some(Timeout)),
        ("never ends the body", Reply::endless_body(), None),
        ("resets", Reply::reset(), Some(Closed)),
        ("closes", Reply::close(), Some(Closed)),
        ("speaks something else", Reply::garbage(), Some(Protocol)),
        ("floods with 100", Reply::interim_flood(100), Some(Protocol)),
        ("floods with 103", Reply::interim_flood(103), Some(Protocol)),
        ("10 MB of headers", Reply::many_headers(100, 100_000), Some(Protocol)),
        ("10,000 headers", Reply::many_headers(10_000, 10), Some(Protocol)),
        ("an endless status line", Reply::raw(huge_line), Some(Protocol)),
        ("half a chunk", Reply::raw(half_chunk).then(Step::Close), Some(Closed)),
        ("a bad chunk", Reply::raw(bad_chunk), Some(Protocol)),
        ("a short body", Reply::raw(short).then(Step::Close), Some(Closed)),
        ("a reset body", Reply::raw(short).then(Step::Reset), Some(Closed)),
        ("two lengths", Reply::raw(two_lengths), Some(Protocol)),
        ("HTTP/0.9", Reply::raw("<html>hello</html>").then(Step::Close), Some(Protocol)),
        (
            "HTTP/1.0 until the end",
            Reply::raw("HTTP/1.0 200 OK\r\n\r\nabc").then(Step::Close),
            None,
        ),
        (
            "an answer and more",
            Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nmore"),
            None,
        ),
    ];
    let receiver = Receiver::always(Reply::ok()).await;
    let courier = courier();
    let target = target(&receiver.url("/"));
    for (name, reply, expected) in cases {
        receiver.change_to(reply);
        let errand_now = Errand { timeout, ..errand(&target, "x") };
        let sending = courier.send(&errand_now);
        let outcome = tokio::time::timeout(4 * timeout, sending).await.expect(name);
        let class = match expected {
            Some(kind) => OutcomeClass::Failure(kind),
            None => OutcomeClass::Success,
        };
        assert_eq!(outcome.class(), class, "{name}: {outcome:?}");
        receiver.change_to(Reply::with_body(200, "fine"));
        let after = courier.send(&errand(&target, "x")).await;
        let fine = Response { status: 200, body: "fine".into(), ..Response::default() };
        assert_eq!(after.answer, Answer::Response(fine), "after: {name}");
    }
}
