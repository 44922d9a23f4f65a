//! The courier against receivers that speak TLS, and HTTP/2 over it.

use crate::common::*;
use posthaste_core::endpoint::EndpointUrl;
use posthaste_core::outcome::{FailureKind, OutcomeClass, Phase};
use posthaste_engine::courier::{Courier, CourierSettings, Target};
use posthaste_testkit::{Http2Receiver, Identity, Move, Receiver, Reply};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const NO_ERROR: u32 = 0;
const REFUSED_STREAM: u32 = 7;
const INTERNAL_ERROR: u32 = 2;
const HTTP_1_1_REQUIRED: u32 = 13;

/// Trusts `identity`; every name leads to 127.0.0.1.
fn courier_that_trusts(identity: &Identity) -> Courier {
    let settings =
        CourierSettings { extra_roots: vec![identity.certificate()], ..CourierSettings::default() };
    courier_with(settings, "*", ScriptedResolver::to(&["127.0.0.1"]))
}

fn url(port: u16) -> String {
    format!("https://hooks.test:{port}/")
}

/// Says `bytes` to whoever connects and closes; the port.
async fn speaks_no_tls(bytes: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 16]).await;
            let _ = stream.write_all(bytes).await;
        }
    });
    port
}

/// Sends `count` messages, `at_once` at a time; their bodies are their numbers.
async fn send_many(courier: &Courier, port: u16, count: usize, at_once: usize) {
    let workers: Vec<_> = (0..at_once)
        .map(|worker| {
            let courier = courier.clone();
            tokio::spawn(async move {
                for number in (worker..count).step_by(at_once) {
                    assert_success(&post(&courier, &url(port), &number.to_string()).await);
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
}

#[tokio::test]
async fn https_is_spoken_with_the_name_of_the_url() {
    let identity = Identity::of(&["hooks.test"]);
    let receiver =
        Receiver::builder().tls(&identity, &["http/1.1"]).start(|_| Reply::with_body(200, "ok"));
    let receiver = receiver.await;
    let courier = courier_that_trusts(&identity);
    for _ in 0..3 {
        assert_success(&post(&courier, &url(receiver.port()), "x").await);
    }
    let requests = receiver.requests();
    assert_eq!((requests.len(), receiver.connections()), (3, 1));
    let host = format!("hooks.test:{}", receiver.port());
    assert_eq!(requests[0].header("host"), Some(host));
    let fresh = post(&courier_that_trusts(&identity), &url(receiver.port()), "x").await;
    assert!(fresh.timing.dns.is_some() && fresh.timing.tls.is_some(), "{:?}", fresh.timing);
}

#[tokio::test]
async fn a_bad_certificate_is_a_tls_failure_with_a_reason() {
    let identity = Identity::of(&["hooks.test"]);
    let receiver = Receiver::builder().tls(&identity, &[]).start(|_| Reply::ok()).await;
    let port = receiver.port();
    let trusting = courier_that_trusts(&identity);
    let strange =
        courier_with(CourierSettings::default(), "*", ScriptedResolver::to(&["127.0.0.1"]));
    let plain = speaks_no_tls(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let silent = speaks_no_tls(b"").await;
    let cases = [
        (&strange, url(port), "is not signed by an authority that we trust"),
        (&trusting, format!("https://other.test:{port}/"), "is for another name"),
        (&trusting, url(plain), "does not speak TLS"),
        (&trusting, url(silent), "TLS handshake"),
    ];
    for (courier, url, reason) in cases {
        let outcome = post(courier, &url, "x").await;
        let failure = failure(&outcome);
        assert_eq!((failure.kind, failure.phase), (FailureKind::Tls, Phase::Tls));
        assert!(failure.detail.contains(reason), "{}", failure.detail);
    }
    assert_eq!(receiver.requests().len(), 0);
}

#[tokio::test]
async fn http2_shares_one_connection() {
    let identity = Identity::of(&["hooks.test"]);
    let script =
        |request: &posthaste_testkit::Http2Request| vec![Move::Answer { stream: request.stream }];
    let receiver = Http2Receiver::start(&identity, script).await;
    let courier = courier_that_trusts(&identity);
    assert_success(&post(&courier, &url(receiver.port()), "first").await);
    send_many(&courier, receiver.port(), 40, 8).await;
    assert_eq!((receiver.requests().len(), receiver.connections()), (41, 1));
}

#[tokio::test]
async fn a_burst_after_the_end_of_an_http2_connection_makes_one_new_one() {
    let identity = Identity::of(&["hooks.test"]);
    let mut is_first = true;
    let receiver = Http2Receiver::start(&identity, move |request| {
        let answer = Move::Answer { stream: request.stream };
        if std::mem::take(&mut is_first) { vec![answer, Move::Close] } else { vec![answer] }
    })
    .await;
    let courier = courier_that_trusts(&identity);
    assert_success(&post(&courier, &url(receiver.port()), "first").await);
    send_many(&courier, receiver.port(), 16, 16).await;
    assert_eq!((receiver.requests().len(), receiver.connections()), (17, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f036_streams_above_a_goaway_move_to_a_new_connection() {
    let identity = Identity::of(&["hooks.test"]);
    // The first request of each connection is answered after others have come, and is the last.
    let receiver = Http2Receiver::start(&identity, |request| match request.stream {
        1 => vec![
            Move::Listen(Duration::from_millis(15)),
            Move::GoAway { last_stream: 1, code: NO_ERROR },
            Move::Answer { stream: 1 },
        ],
        _ => Vec::new(),
    })
    .await;
    send_many(&courier_that_trusts(&identity), receiver.port(), 100, 4).await;
    let mut answered = BTreeMap::<_, usize>::new();
    for request in receiver.requests().into_iter().filter(|request| request.stream == 1) {
        *answered.entry(request.body).or_default() += 1;
    }
    assert_eq!(answered.len(), 100);
    assert!(answered.values().all(|times| *times == 1), "what was answered was not sent again");
    let moved = receiver.requests().iter().filter(|request| request.stream > 1).count();
    assert!(moved > 0, "no stream was ever above the last one");
}

#[tokio::test]
async fn f036_a_stream_that_the_goaway_names_is_not_sent_again() {
    let identity = Identity::of(&["hooks.test"]);
    let receiver = Http2Receiver::start(&identity, |request| match request.stream {
        1 => vec![Move::Answer { stream: 1 }],
        last_stream => vec![Move::GoAway { last_stream, code: NO_ERROR }, Move::Close],
    })
    .await;
    let courier = courier_that_trusts(&identity);
    assert_success(&post(&courier, &url(receiver.port()), "first").await);
    let outcome = post(&courier, &url(receiver.port()), "second").await;
    assert_eq!(outcome.class(), OutcomeClass::Failure(FailureKind::Closed));
    assert_eq!(receiver.requests().len(), 2);
    assert_success(&post(&courier, &url(receiver.port()), "third").await);
}

#[tokio::test]
async fn f036_a_refused_stream_is_sent_again_and_a_failed_one_is_not() {
    let identity = Identity::of(&["hooks.test"]);
    for (code, expected) in [(REFUSED_STREAM, 3), (INTERNAL_ERROR, 2)] {
        let mut answers = 0;
        let receiver = Http2Receiver::start(&identity, move |request| {
            answers += 1;
            let stream = request.stream;
            if answers == 2 {
                vec![Move::ResetStream { stream, code }]
            } else {
                vec![Move::Answer { stream }]
            }
        })
        .await;
        let courier = courier_that_trusts(&identity);
        assert_success(&post(&courier, &url(receiver.port()), "first").await);
        let outcome = post(&courier, &url(receiver.port()), "second").await;
        assert_eq!(outcome.status().is_some(), code == REFUSED_STREAM, "{outcome:?}");
        assert_eq!(receiver.requests().len(), expected);
    }
}

#[tokio::test]
async fn f036_a_receiver_that_refuses_everything_is_given_up() {
    let identity = Identity::of(&["hooks.test"]);
    let receiver = Http2Receiver::start(&identity, |request| {
        vec![Move::ResetStream { stream: request.stream, code: REFUSED_STREAM }]
    })
    .await;
    let outcome = post(&courier_that_trusts(&identity), &url(receiver.port()), "x").await;
    assert_eq!(outcome.class(), OutcomeClass::Failure(FailureKind::Closed));
    assert!(receiver.requests().len() <= 5);
}

#[tokio::test]
async fn f035_a_kept_http2_connection_that_was_just_closed_is_not_a_failure() {
    let identity = Identity::of(&["hooks.test"]);
    let receiver = Http2Receiver::start(&identity, |request| match request.stream {
        1 => vec![Move::Answer { stream: 1 }],
        _ => vec![Move::Close],
    })
    .await;
    let courier = courier_that_trusts(&identity);
    assert_success(&post(&courier, &url(receiver.port()), "first").await);
    assert_success(&post(&courier, &url(receiver.port()), "second").await);
    let came: Vec<_> =
        receiver.requests().iter().map(|request| (request.connection, request.stream)).collect();
    assert_eq!(came, [(1, 1), (1, 3), (2, 1)]);
}

#[tokio::test]
async fn f037_a_host_that_wants_http1_gets_it_at_once_and_from_then_on() {
    let identity = Identity::of(&["hooks.test"]);
    for by_goaway in [false, true] {
        let receiver = Http2Receiver::start_with_http1(&identity, move |request| {
            let stream = request.stream;
            if by_goaway {
                vec![Move::GoAway { last_stream: 0, code: HTTP_1_1_REQUIRED }]
            } else {
                vec![Move::ResetStream { stream, code: HTTP_1_1_REQUIRED }]
            }
        })
        .await;
        let courier = courier_that_trusts(&identity);
        for number in 1..=3 {
            assert_success(&post(&courier, &url(receiver.port()), "x").await);
            assert_eq!(receiver.requests().len(), 1, "asked with HTTP/2 again");
            assert_eq!(receiver.http1_requests(), number);
        }
        assert_eq!(receiver.connections(), 2);
    }
}

#[tokio::test]
async fn f041_a_host_with_other_letters_is_sent_in_ascii() {
    let cases = [
        ("https://ē.nz:PORT/hook", "xn--hea.nz"),
        ("https://xn--hea.nz:PORT/hook", "xn--hea.nz"),
        ("https://BÜCHER.example:PORT/", "xn--bcher-kva.example"),
        ("https://👻.example:PORT/", "xn--9q8h.example"),
        ("https://example。com:PORT/", "example.com"),
    ];
    for (text, ascii) in cases {
        // The certificate is for the ASCII form only, and the receiver notes the SNI.
        let identity = Identity::of(&[ascii]);
        let receiver = Receiver::builder().tls(&identity, &[]).start(|_| Reply::ok()).await;
        let url = text.replace("PORT", &receiver.port().to_string());
        assert_success(&post(&courier_that_trusts(&identity), &url, "x").await);
        let host = receiver.requests()[0].header("host").unwrap();
        assert_eq!(host, format!("{ascii}:{}", receiver.port()));
        assert_eq!(receiver.server_names(), [ascii]);
    }
    let both = ["https://ē.nz/hook", "https://xn--hea.nz/hook"];
    let [one, other] = both.map(|text| EndpointUrl::parse(text).unwrap());
    assert_eq!(one, other);
    assert_eq!(format!("{:?}", Target::from(&one)), "https://xn--hea.nz/…");
    assert!(EndpointUrl::parse("https://℅.example/").is_err());
}
