//! Makes a fresh connection: vetted addresses, the fastest of them, then TLS.

use super::target::Origin;
use super::tls::{self, Tls};
use super::trace::Trace;
use super::wire::{Stream, Wire};
use crate::guard::{Guard, Host, Refusal};
use posthaste_core::limits::CONNECT_TIMEOUT;
use posthaste_core::outcome::{Failure, FailureKind, Phase};
use rustls::pki_types::ServerName;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Head start of one address over the next (RFC 8305, section 5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Addresses tried for one connection.
const ADDRESSES_MAX: usize = 8;

pub(super) struct Dialer {
    guard: Arc<Guard>,
    tls: Tls,
}

pub(super) struct Dialed {
    pub wire: Wire,
    pub remote: IpAddr,
    pub is_http2: bool,
}

impl Dialer {
    pub fn new(guard: Arc<Guard>, tls: Tls) -> Self {
        Self { guard, tls }
    }

    pub async fn dial(
        &self,
        origin: &Origin,
        http1_only: bool,
        trace: &mut Trace,
    ) -> Result<Dialed, Failure> {
        trace.enter(Phase::Resolve);
        let addresses = self.guard.addresses(&origin.host).await.map_err(|refusal| {
            let kind = match refusal {
                Refusal::Unresolved(_) => FailureKind::Dns,
                Refusal::Blocked(_) => FailureKind::Blocked,
            };
            trace.failure(kind, refusal.to_string())
        })?;
        trace.enter(Phase::Connect);
        let tcp = connect(&in_turn(addresses, origin.port), trace).await?;
        let remote = tcp.peer_addr().map_err(|error| {
            trace.failure(FailureKind::Connect, format!("the connection broke: {}", error.kind()))
        })?;
        trace.connected_to(remote.ip());
        if !origin.is_tls {
            let wire = Wire::new(Stream::Plain(tcp));
            return Ok(Dialed { wire, remote: remote.ip(), is_http2: false });
        }
        trace.enter(Phase::Tls);
        let Some(name) = server_name(&origin.host) else {
            let detail = "the host name cannot be used in TLS";
            return Err(trace.failure(FailureKind::Tls, detail));
        };
        let connector = if http1_only { &self.tls.http1 } else { &self.tls.any };
        let stream = connector
            .connect(name, tcp)
            .await
            .map_err(|error| trace.failure(FailureKind::Tls, tls::handshake_detail(&error)))?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let wire = Wire::new(Stream::Tls(Box::new(stream)));
        Ok(Dialed { wire, remote: remote.ip(), is_http2 })
    }
}

fn server_name(host: &Host) -> Option<ServerName<'static>> {
    match host {
        Host::Name(name) => ServerName::try_from(name.to_string()).ok(),
        Host::Address(address) => Some(ServerName::IpAddress((*address).into())),
    }
}

/// IPv6 and IPv4 by turns, IPv6 first (RFC 8305, section 4).
fn in_turn(addresses: Vec<IpAddr>, port: u16) -> Vec<SocketAddr> {
    let (v6, v4): (Vec<_>, Vec<_>) = addresses.into_iter().partition(IpAddr::is_ipv6);
    let (mut v6, mut v4) = (v6.into_iter(), v4.into_iter());
    let mut turns = Vec::new();
    loop {
        let (six, four) = (v6.next(), v4.next());
        if six.is_none() && four.is_none() {
            break;
        }
        turns.extend([six, four].into_iter().flatten().map(|ip| SocketAddr::new(ip, port)));
    }
    turns.truncate(ADDRESSES_MAX);
    turns
}

async fn connect(addresses: &[SocketAddr], trace: &Trace) -> Result<TcpStream, Failure> {
    let connected = match addresses {
        [only] => timeout(CONNECT_TIMEOUT, TcpStream::connect(only)).await,
        several => timeout(CONNECT_TIMEOUT, race(several)).await,
    };
    let stream = match connected {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(trace.failure(kind_of(&error), detail_of(&error))),
        Err(_elapsed) => {
            let seconds = CONNECT_TIMEOUT.as_secs();
            let detail = format!("no address took the connection within {seconds} s");
            return Err(trace.failure(FailureKind::Connect, detail));
        }
    };
    // A socket that is already broken says so at the first write.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// The first of several addresses that takes the connection. A refusal lets the next one start
/// at once, silence after `ATTEMPT_DELAY` (RFC 8305, section 5).
async fn race(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut waiting = addresses.iter().copied();
    let mut running = JoinSet::new();
    let mut last_error = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        let more = match waiting.next() {
            Some(address) => {
                running.spawn(TcpStream::connect(address));
                waiting.len() > 0
            }
            None => false,
        };
        tokio::select! {
            joined = running.join_next() => match joined {
                Some(Ok(Ok(stream))) => return Ok(stream),
                Some(Ok(Err(error))) => last_error = error,
                Some(Err(_panicked)) => {}
                None => return Err(last_error),
            },
            () = sleep(ATTEMPT_DELAY), if more => {}
        }
    }
}

/// What only our own machine can be short of is our trouble, not the endpoint's.
fn kind_of(error: &io::Error) -> FailureKind {
    // EMFILE, ENFILE, ENOMEM and ENOBUFS of Linux have no stable `ErrorKind`.
    const OWN_TROUBLE: [i32; 4] = [24, 23, 12, 105];
    match error.raw_os_error() {
        Some(code) if OWN_TROUBLE.contains(&code) => FailureKind::Local,
        _ => FailureKind::Connect,
    }
}

fn detail_of(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "the receiver refused the connection".to_owned(),
        kind => format!("the connection failed: {kind}"),
    }
}
