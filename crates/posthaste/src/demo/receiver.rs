//! Receivers of the demo: small HTTP/1.1 servers that check what they get, and behave as their
//! part in the story asks.

use crate::env::SystemClock;
use crate::failure::Failure;
use posthaste_core::time::{Clock, Timestamp};
use posthaste_core::verify::Verifier;
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Largest head and body that are read; ours are far smaller.
const HEAD_BYTES_MAX: u64 = 16 * 1024;
const BODY_BYTES_MAX: usize = 64 * 1024;

/// What a receiver does with a request that is fine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Healthy,
    Slow,
    /// Answers 500 to the first attempt of every second message.
    Flaky,
    /// Answers 503 until it is told to recover.
    Recovering,
    /// Nobody listens at its port.
    Dead,
}

pub struct Receiver {
    pub part: Part,
    pub address: SocketAddr,
    shared: Arc<Shared>,
    /// Bound but not listening, so that the port refuses connections and nobody else gets it.
    _silent: Option<TcpSocket>,
}

struct Shared {
    part: Part,
    verifier: Verifier,
    well: AtomicBool,
    seen: Mutex<Seen>,
}

/// What a receiver saw.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub requests: u64,
    pub bad_signatures: u64,
    /// Requests for a message that had got its 2xx before.
    pub duplicates: u64,
    /// Requests by message, and whether it got its 2xx.
    messages: HashMap<String, (u64, bool)>,
}

impl Part {
    pub const ALL: [Self; 5] =
        [Self::Healthy, Self::Slow, Self::Flaky, Self::Recovering, Self::Dead];

    pub fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Slow => "slow",
            Self::Flaky => "flaky",
            Self::Recovering => "recovering",
            Self::Dead => "dead",
        }
    }

    pub fn about(self) -> &'static str {
        match self {
            Self::Healthy => "200 at once",
            Self::Slow => "200 after 300 ms",
            Self::Flaky => "500 first, every second",
            Self::Recovering => "503, later 200",
            Self::Dead => "refuses; no retries",
        }
    }
}

impl Receiver {
    /// Starts a receiver on a free port of the loopback address.
    ///
    /// # Errors
    /// There is no free port.
    pub async fn start(part: Part, secret: &str) -> Result<Self, Failure> {
        let verifier = Verifier::new([secret]).map_err(|error| Failure::new(error.to_string()))?;
        let shared = Arc::new(Shared {
            part,
            verifier,
            well: AtomicBool::new(part != Part::Recovering),
            seen: Mutex::default(),
        });
        let no_port = |error: io::Error| Failure::new(format!("no port for a receiver: {error}"));
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        if part == Part::Dead {
            let silent = TcpSocket::new_v4().map_err(no_port)?;
            silent.bind(any).map_err(no_port)?;
            let address = silent.local_addr().map_err(no_port)?;
            return Ok(Self { part, address, shared, _silent: Some(silent) });
        }
        let listener = TcpListener::bind(any).await.map_err(no_port)?;
        let address = listener.local_addr().map_err(no_port)?;
        tokio::spawn(accept(listener, shared.clone()));
        Ok(Self { part, address, shared, _silent: None })
    }

    pub fn recover(&self) {
        self.shared.well.store(true, Ordering::Relaxed);
    }

    pub fn seen(&self) -> Seen {
        self.shared.seen().clone()
    }
}

impl Seen {
    /// Messages that got a 2xx.
    pub fn delivered(&self) -> u64 {
        self.messages.values().filter(|(_, delivered)| *delivered).count() as u64
    }
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks and counts a request, and says which status it gets.
    fn judge(&self, request: &Request, now: Timestamp) -> u16 {
        let header = |name: &str| request.headers.get(name).map(String::as_str);
        let verified = self.verifier.verify(header, &request.body, now);
        let well = self.well.load(Ordering::Relaxed);
        let mut guard = self.seen();
        let seen = &mut *guard;
        seen.requests += 1;
        let Ok(verified) = verified else {
            seen.bad_signatures += 1;
            return 401;
        };
        let message = seen.messages.entry(verified.id.to_owned()).or_default();
        message.0 += 1;
        let event: serde_json::Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let first_of_second = message.0 == 1 && event["number"].as_u64().unwrap_or(0) % 2 == 1;
        match self.part {
            Part::Flaky if first_of_second => return 500,
            Part::Recovering if !well => return 503,
            _ => {}
        }
        if std::mem::replace(&mut message.1, true) {
            seen.duplicates += 1;
        }
        200
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(converse(stream, shared.clone()))),
            // Out of file descriptors: some will be free again.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn converse(stream: TcpStream, shared: Arc<Shared>) {
    let _ = stream.set_nodelay(true);
    let mut stream = BufReader::new(stream);
    while let Ok(Some(request)) = read_request(&mut stream).await {
        let status = shared.judge(&request, SystemClock.now());
        if shared.part == Part::Slow {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let answer = format!("HTTP/1.1 {status} Demo\r\ncontent-length: 0\r\n\r\n");
        if stream.get_mut().write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

struct Request {
    /// By lower-case name.
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

/// The next request, or `None` at the orderly end of the connection.
async fn read_request(stream: &mut BufReader<TcpStream>) -> io::Result<Option<Request>> {
    let mut headers = HashMap::new();
    let mut head = (&mut *stream).take(HEAD_BYTES_MAX);
    let mut line = String::new();
    if head.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    loop {
        line.clear();
        if head.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|text| text.parse::<usize>().ok());
    let mut body = vec![0; length.unwrap_or(0).min(BODY_BYTES_MAX)];
    stream.read_exact(&mut body).await?;
    Ok(Some(Request { headers, body }))
}
