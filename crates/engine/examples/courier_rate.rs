//! How many signed-size requests a second one courier carries over loopback, closed loop.
//!
//! `cargo run --release -p posthaste-engine --example courier_rate [SECONDS] [AT_ONCE]`

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use posthaste_core::endpoint::EndpointUrl;
use posthaste_core::outcome::OutcomeClass;
use posthaste_engine::courier::{Courier, CourierSettings, Errand, Target};
use posthaste_engine::guard::{Allowed, Guard};
use posthaste_engine::resolver::SystemResolver;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;

const PAYLOAD_BYTES: usize = 1_024;
const ENDPOINTS: usize = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let seconds: u64 = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let at_once: usize = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let sink = start_sink()?;
    let guard = Guard::new(Allowed::parse("127.0.0.0/8")?, Arc::new(SystemResolver::new()?));
    let courier = Courier::new(CourierSettings::default(), Arc::new(guard))?;
    let sent = runtime::Builder::new_current_thread().enable_all().build()?.block_on(send_for(
        courier,
        sink,
        Duration::from_secs(seconds),
        at_once,
    ));
    println!("{} requests/s, {at_once} at once", sent / seconds);
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures")]
async fn send_for(courier: Courier, sink: SocketAddr, span: Duration, at_once: usize) -> u64 {
    let end = Instant::now() + span;
    let workers: Vec<_> = (0..at_once)
        .map(|worker| {
            let courier = courier.clone();
            tokio::spawn(async move {
                let url = format!("http://{sink}/ep/{}", worker % ENDPOINTS);
                let Ok(url) = EndpointUrl::parse(&url) else { return 0 };
                let target = Target::from(&url);
                let body = Bytes::from(vec![b'x'; PAYLOAD_BYTES]);
                let mut sent = 0;
                while Instant::now() < end {
                    let outcome = courier.send(&errand(&target, &body)).await;
                    sent += u64::from(outcome.class() == OutcomeClass::Success);
                }
                sent
            })
        })
        .collect();
    let mut sent = 0;
    for worker in workers {
        sent += worker.await.unwrap_or_default();
    }
    sent
}

fn errand<'t>(target: &'t Target, body: &Bytes) -> Errand<'t> {
    let mut headers = HeaderMap::with_capacity(8);
    let value = HeaderValue::from_static;
    headers.insert("content-type", value("application/json"));
    headers.insert("webhook-id", value("msg_2Yh0000000000000000000000a"));
    headers.insert("webhook-timestamp", value("1780000000"));
    let signature = "v1,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    headers.insert("webhook-signature", value(signature));
    let (method, timeout) = (Method::POST, Duration::from_secs(15));
    Errand { target, method, headers, body: body.clone(), timeout }
}

/// A receiver on a thread of its own that does as little as it can.
fn start_sink() -> Result<SocketAddr, Box<dyn Error>> {
    let (tell, told) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let Ok(runtime) = runtime::Builder::new_current_thread().enable_all().build() else {
            return;
        };
        runtime.block_on(async move {
            let Ok(listener) = TcpListener::bind("127.0.0.1:0").await else { return };
            let _ = tell.send(listener.local_addr());
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(swallow(stream));
            }
        });
    });
    Ok(told.recv()??)
}

/// Answers whenever as many bytes came as the first request had.
async fn swallow(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut buffer = vec![0; 64 * 1024];
    let mut pending = 0;
    let mut request_bytes = None;
    while let Ok(read @ 1..) = stream.read(&mut buffer[pending..]).await {
        pending += read;
        if request_bytes.is_none() {
            let head = buffer[..pending].windows(4).position(|bytes| bytes == b"\r\n\r\n");
            request_bytes = head.map(|position| position + 4 + PAYLOAD_BYTES);
        }
        if request_bytes.is_some_and(|whole| pending >= whole) {
            pending = 0;
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            if stream.write_all(answer).await.is_err() {
                return;
            }
        }
    }
}
