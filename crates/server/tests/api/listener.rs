//! Connections: slashes, browsers, bounds, and an orderly end.

use crate::common::Server;
use http::Method;
use posthaste_server::ServeLimits;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

#[tokio::test]
async fn slashes_at_the_end_and_browsers() {
    let server = Server::start().await;
    for path in ["/api/v1/app", "/api/v1/app/", "/api/v1/app//", "/api/v1/app///?limit=1"] {
        let reply = server.get(path).await;
        assert!(reply.head.contains("access-control-allow-origin: *"), "{}", reply.head);
        reply.expect(200);
    }
    let asked = [
        ("origin", "https://else.test"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type"),
    ];
    for path in ["/api/v1/app", "/api/v1/nothing"] {
        let reply = server.call_as("", Method::OPTIONS, path, &asked, "").await;
        assert_eq!(reply.status, 200);
        assert!(reply.head.contains("access-control-allow-headers: authorization,content-type"));
        assert!(reply.head.contains("access-control-max-age: 600"));
    }
}

#[tokio::test]
async fn a_stop_finishes_what_is_under_way_and_takes_nothing_new() {
    let mut server = Server::start().await;
    let mut half = TcpStream::connect(server.address).await.unwrap();
    let body = r#"{"name":"late"}"#;
    let head = format!(
        "POST /api/v1/app HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\
         expect: 100-continue\r\n\r\n",
        server.token,
        body.len()
    );
    half.write_all(head.as_bytes()).await.unwrap();
    // The interim answer tells that the handler has the request and waits for its body.
    let mut interim = [0; 25];
    half.read_exact(&mut interim).await.unwrap();
    assert!(interim.starts_with(b"HTTP/1.1 100 "));
    server.stop();
    half.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    half.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    tokio::time::timeout(posthaste_testkit::PATIENCE, &mut server.running)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_client_that_says_nothing_more() {
    let limits =
        ServeLimits { drain_time_max: Duration::from_millis(50), ..ServeLimits::default() };
    let mut server = Server::start_with(|_| {}, limits).await;
    let mut half = TcpStream::connect(server.address).await.unwrap();
    half.write_all(b"POST /api/v1/app HTTP/1.1\r\nhost: x\r\n").await.unwrap();
    server.stop();
    let ended = tokio::time::timeout(posthaste_testkit::PATIENCE, &mut server.running);
    ended.await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_head_that_never_ends_is_cut_off() {
    let limits = ServeLimits { head_time_max: Duration::from_millis(50), ..ServeLimits::default() };
    let server = Server::start_with(|_| {}, limits).await;
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(b"GET /api/v1/health HTTP/1.1\r\nx-slow: ").await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(posthaste_testkit::PATIENCE, slow.read_to_end(&mut answer));
    // Whether by an answer or a reset: it ends.
    let _ = read.await.unwrap();
    server.get("/api/v1/health").await.expect(200);
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_cut_off() {
    let limits =
        ServeLimits { stall_time_max: Duration::from_millis(50), ..ServeLimits::default() };
    let server = Server::start_with(|_| {}, limits).await;
    let mut deaf = TcpStream::connect(server.address).await.unwrap();
    let ask = "GET /api/v1/openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(64);
    // The answers are more than sockets hold: sooner or later the server has to wait for us, then
    // it takes no more requests, and in the end the write fails.
    let cut_off = async { while deaf.write_all(ask.as_bytes()).await.is_ok() {} };
    tokio::time::timeout(posthaste_testkit::PATIENCE, cut_off).await.unwrap();
    server.get("/api/v1/health").await.expect(200);
}

const PING: &[u8] = b"GET /api/v1/health/ping HTTP/1.1\r\nhost: x\r\n\r\n";

async fn ping(stream: &mut TcpStream) {
    let mut answer = [0; 4_096];
    stream.write_all(PING).await.unwrap();
    let read = tokio::time::timeout(posthaste_testkit::PATIENCE, stream.read(&mut answer));
    let length = read.await.unwrap().unwrap();
    assert!(answer[..length].starts_with(b"HTTP/1.1 204 "), "{length} bytes");
}

#[tokio::test]
async fn more_connections_than_allowed_wait_while_the_others_are_busy() {
    let limits = ServeLimits {
        connections_max: 1,
        place_time_min: Duration::ZERO,
        ..ServeLimits::default()
    };
    let server = Server::start_with(|_| {}, limits).await;
    let mut first = TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "POST /api/v1/app HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\
         content-length: 14\r\nexpect: 100-continue\r\n\r\n",
        server.token,
    );
    first.write_all(head.as_bytes()).await.unwrap();
    // The interim answer tells that the request is under way.
    let mut answer = [0; 4_096];
    assert!(first.read(&mut answer).await.unwrap() > 0);
    // The only place is taken; the second asks, and the first goes on being served.
    let mut second = TcpStream::connect(server.address).await.unwrap();
    second.write_all(PING).await.unwrap();
    for byte in br#"{"name":"App"}"# {
        first.write_all(&[*byte]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let length = first.read(&mut answer).await.unwrap();
    assert!(answer[..length].starts_with(b"HTTP/1.1 201 "));
    // Then it has nothing to ask, and gives up its place.
    assert!(second.read(&mut answer).await.unwrap() > 0);
    assert_eq!(first.read(&mut answer).await.unwrap_or(0), 0);
}

/// Clients that send half a head each, more than there is room for, and keep sending a little.
#[tokio::test]
async fn clients_that_never_ask_keep_nobody_out() {
    const PLACES: usize = 8;
    let limits = ServeLimits {
        connections_max: PLACES,
        place_time_min: Duration::from_millis(50),
        ..ServeLimits::default()
    };
    let server = Server::start_with(|_| {}, limits).await;
    let mut halves = Vec::new();
    for _ in 0..2 * PLACES {
        let mut half = TcpStream::connect(server.address).await.unwrap();
        half.write_all(b"GET /api/v1/health HTTP/1.1\r\nx-slow: ").await.unwrap();
        halves.push(half);
    }
    let mut honest = TcpStream::connect(server.address).await.unwrap();
    let asked = std::time::Instant::now();
    for _ in 0..20 {
        ping(&mut honest).await;
        for half in &mut halves {
            // Those that lost their place notice sooner or later.
            let _ = half.write_all(b"x").await;
        }
    }
    assert!(asked.elapsed() < limits.head_time_max / 4, "{:?}", asked.elapsed());
    for _ in 0..PLACES {
        ping(&mut TcpStream::connect(server.address).await.unwrap()).await;
    }
}
