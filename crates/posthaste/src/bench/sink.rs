//! Where the benchmark's deliveries go: a receiver that answers 200 and notes when what arrived.

use crate::env::SystemClock;
use crate::failure::Failure;
use posthaste_core::time::{Clock, Timestamp};
use std::collections::HashSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Largest request that is read; the benchmark's own are smaller.
const REQUEST_BYTES_MAX: usize = 8 * 1024 * 1024;
const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

pub struct Sink {
    pub address: SocketAddr,
    arrivals: Arc<Mutex<Arrivals>>,
}

/// What came in so far.
#[derive(Default)]
pub struct Arrivals {
    numbers: HashSet<(u64, String)>,
    pub duplicates: u64,
    /// From sending to arrival, first arrivals only.
    pub latencies: Vec<Duration>,
    pub last_at: Timestamp,
}

impl Sink {
    /// # Errors
    /// There is no free port.
    pub async fn start() -> Result<Self, Failure> {
        let no_port = |error: io::Error| Failure::new(format!("no port for the sink: {error}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(no_port)?;
        let address = listener.local_addr().map_err(no_port)?;
        let arrivals = Arc::<Mutex<Arrivals>>::default();
        let shared = arrivals.clone();
        tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => drop(tokio::spawn(converse(stream, shared.clone()))),
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        });
        Ok(Self { address, arrivals })
    }

    pub fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arrivals {
    pub fn delivered(&self) -> u64 {
        self.numbers.len() as u64
    }

    fn note(&mut self, path: &str, number: u64, sent_at: Timestamp, now: Timestamp) {
        self.last_at = now;
        if self.numbers.insert((number, path.to_owned())) {
            self.latencies.push(now.since(sent_at));
        } else {
            self.duplicates += 1;
        }
    }
}

async fn converse(mut stream: TcpStream, arrivals: Arc<Mutex<Arrivals>>) {
    let _ = stream.set_nodelay(true);
    let mut read = Vec::with_capacity(4 * 1024);
    while let Ok(Some((head, length))) = super::read_message(&mut stream, &mut read).await {
        let now = SystemClock.now();
        let path = std::str::from_utf8(&read[..head]).unwrap_or_default().split(' ').nth(1);
        if let Some((number, sent_at)) = super::read_event(&read[head..head + length]) {
            let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
            arrivals.note(path.unwrap_or_default(), number, sent_at, now);
        }
        read.drain(..head + length);
        if stream.write_all(OK).await.is_err() {
            return;
        }
    }
}

/// Reads until `read` holds a whole message; returns the lengths of its head and its body, `None`
/// at the orderly end of the connection.
pub async fn read_message(
    stream: &mut TcpStream,
    read: &mut Vec<u8>,
) -> io::Result<Option<(usize, usize)>> {
    loop {
        if let Some(head) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let length = content_length(&read[..head]);
            if read.len() >= head + 4 + length {
                return Ok(Some((head + 4, length)));
            }
        }
        if read.len() > REQUEST_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if stream.read_buf(read).await? == 0 {
            return if read.is_empty() {
                Ok(None)
            } else {
                Err(io::ErrorKind::UnexpectedEof.into())
            };
        }
    }
}

fn content_length(head: &[u8]) -> usize {
    let lines = head.split(|byte| *byte == b'\n');
    let mut values = lines.filter_map(|line| {
        let (name, value) = line.split_at_checked(15)?;
        name.eq_ignore_ascii_case(b"content-length:").then_some(value)
    });
    let text = values.next().and_then(|value| std::str::from_utf8(value).ok());
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_found_in_any_case() {
        assert_eq!(content_length(b"POST / HTTP/1.1\r\nContent-Length: 12\r\nx: y"), 12);
        assert_eq!(content_length(b"HTTP/1.1 200 OK\r\ncontent-length:7"), 7);
        assert_eq!(content_length(b"HTTP/1.1 204 No Content"), 0);
    }
}
