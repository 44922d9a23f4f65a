//! An HTTP/2 receiver that says exactly what its script says, frame by frame (RFC 9113).
//!
//! A real HTTP/2 server library would hide what the tests are about: which stream a GOAWAY names,
//! and what is said about the streams above it.

use crate::receiver::read_request;
use crate::tls::Identity;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

/// Listens until it is dropped.
pub struct Http2Receiver {
    address: SocketAddr,
    shared: Arc<Mutex<State>>,
    listening: JoinHandle<()>,
}

/// A request that was received whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http2Request {
    /// Counted from 1 per receiver.
    pub connection: usize,
    /// 1, 3, 5 and so on per connection.
    pub stream: u32,
    pub body: Bytes,
}

/// What the receiver does next on the connection.
#[derive(Clone, Debug)]
pub enum Move {
    /// 200 without a body.
    Answer {
        stream: u32,
    },
    /// Waits for more frames of the sender, at most so long.
    Listen(Duration),
    ResetStream {
        stream: u32,
        code: u32,
    },
    GoAway {
        last_stream: u32,
        code: u32,
    },
    Close,
}

type Script = Box<dyn FnMut(&Http2Request) -> Vec<Move> + Send>;

struct State {
    script: Script,
    requests: Vec<Http2Request>,
    http1_requests: usize,
    connections: usize,
}

impl Http2Receiver {
    /// Speaks HTTP/2 over TLS and nothing else. `script` is asked about each whole request.
    ///
    /// # Panics
    /// When there is no free port.
    pub async fn start(
        identity: &Identity,
        script: impl FnMut(&Http2Request) -> Vec<Move> + Send + 'static,
    ) -> Self {
        Self::listen(identity, &["h2"], script).await
    }

    /// Speaks HTTP/1.1 as well, and answers 200 to all that comes with it.
    ///
    /// # Panics
    /// When there is no free port.
    pub async fn start_with_http1(
        identity: &Identity,
        script: impl FnMut(&Http2Request) -> Vec<Move> + Send + 'static,
    ) -> Self {
        Self::listen(identity, &["h2", "http/1.1"], script).await
    }

    async fn listen(
        identity: &Identity,
        alpn: &[&str],
        script: impl FnMut(&Http2Request) -> Vec<Move> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let state = State {
            script: Box::new(script),
            requests: Vec::new(),
            http1_requests: 0,
            connections: 0,
        };
        let shared = Arc::new(Mutex::new(state));
        let acceptor = identity.acceptor(alpn);
        let state = Arc::clone(&shared);
        let listening = tokio::spawn(async move {
            let mut serving = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, state) = (acceptor.clone(), Arc::clone(&state));
                serving.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let number = {
                        let mut state = locked(&state);
                        state.connections += 1;
                        state.connections
                    };
                    if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
                        let _ = serve_http1(stream, &state).await;
                        return;
                    }
                    let _ = Session::new(stream, number, &state).run().await;
                });
            }
        });
        Self { address, shared, listening }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn requests(&self) -> Vec<Http2Request> {
        locked(&self.shared).requests.clone()
    }

    pub fn http1_requests(&self) -> usize {
        locked(&self.shared).http1_requests
    }

    pub fn connections(&self) -> usize {
        locked(&self.shared).connections
    }
}

impl Drop for Http2Receiver {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PREFACE_BYTES: usize = 24;
/// `:status: 200` in HPACK's static table (RFC 7541, appendix A).
const STATUS_200: u8 = 0x88;

struct Session<'s, S> {
    stream: S,
    number: usize,
    state: &'s Mutex<State>,
    buffer: Vec<u8>,
    bodies: BTreeMap<u32, Vec<u8>>,
}

impl<'s, S: AsyncRead + AsyncWrite + Unpin> Session<'s, S> {
    fn new(stream: S, number: usize, state: &'s Mutex<State>) -> Self {
        Self { stream, number, state, buffer: Vec::new(), bodies: BTreeMap::new() }
    }

    async fn run(mut self) -> io::Result<()> {
        self.fill(PREFACE_BYTES).await?;
        self.buffer.drain(..PREFACE_BYTES);
        self.write_frame(SETTINGS, 0, 0, &[]).await?;
        loop {
            let moves = self.read_frame().await?;
            for next in moves {
                if !self.perform(next).await? {
                    return Ok(());
                }
            }
        }
    }

    /// Reads one frame; a whole request is recorded and gives the script's moves.
    async fn read_frame(&mut self) -> io::Result<Vec<Move>> {
        self.fill(9).await?;
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3, ..] = self.buffer[..] else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let length = u32::from_be_bytes([0, l0, l1, l2]) as usize;
        self.fill(9 + length).await?;
        let payload: Vec<u8> = self.buffer.drain(..9 + length).skip(9).collect();
        let stream = u32::from_be_bytes([s0, s1, s2, s3]) & 0x7FFF_FFFF;
        match kind {
            SETTINGS if flags & ACK == 0 => self.write_frame(SETTINGS, ACK, 0, &[]).await?,
            PING if flags & ACK == 0 => self.write_frame(PING, ACK, 0, &payload).await?,
            HEADERS => {
                self.bodies.insert(stream, Vec::new());
            }
            DATA => self.bodies.entry(stream).or_default().extend_from_slice(&payload),
            _ => {}
        }
        if !matches!(kind, HEADERS | DATA) || flags & END_STREAM == 0 {
            return Ok(Vec::new());
        }
        let body = self.bodies.remove(&stream).unwrap_or_default().into();
        let request = Http2Request { connection: self.number, stream, body };
        let mut state = locked(self.state);
        state.requests.push(request.clone());
        Ok((state.script)(&request))
    }

    /// Can be given up half-way: what was read stays in the buffer.
    async fn fill(&mut self, length: usize) -> io::Result<()> {
        while self.buffer.len() < length {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// False when the connection is over.
    async fn perform(&mut self, next: Move) -> io::Result<bool> {
        match next {
            Move::Answer { stream } => {
                let flags = END_STREAM | END_HEADERS;
                self.write_frame(HEADERS, flags, stream, &[STATUS_200]).await?;
            }
            Move::Listen(span) => {
                // What the script says about requests that come meanwhile is left out.
                let listening = async { while self.read_frame().await.is_ok() {} };
                let _ = timeout(span, listening).await;
            }
            Move::ResetStream { stream, code } => {
                self.write_frame(RST_STREAM, 0, stream, &code.to_be_bytes()).await?;
            }
            Move::GoAway { last_stream, code } => {
                let payload = [last_stream.to_be_bytes(), code.to_be_bytes()].concat();
                self.write_frame(GOAWAY, 0, 0, &payload).await?;
            }
            Move::Close => {
                self.stream.shutdown().await?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn write_frame(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: &[u8],
    ) -> io::Result<()> {
        let length = u32::try_from(payload.len()).map_err(io::Error::other)?.to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(payload);
        self.stream.write_all(&frame).await?;
        self.stream.flush().await
    }
}

async fn serve_http1<S>(mut stream: S, state: &Mutex<State>) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut buffer = Vec::new();
    while read_request(&mut stream, &mut buffer, 0).await?.is_some() {
        locked(state).http1_requests += 1;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
        stream.flush().await?;
    }
    Ok(())
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
