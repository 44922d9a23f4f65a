//! `posthaste bench`: how much this machine accepts and delivers, and how fast.
//!
//! Server, senders and receiver share one process and one clock, so latency is one subtraction;
//! and they share the processor, so a server with the machine to itself does more. The database is
//! in the current folder, not in a temporary one, because that may lie in memory. With PostgreSQL,
//! the processor time is that of this process alone.

mod report;
mod sink;

use crate::client::Client;
use crate::config::{Config, Database, DatabaseUrl, Flags};
use crate::env::{SystemClock, SystemDice};
use crate::failure::Failure;
use crate::serve::{self, Parts, Running};
use crate::{cli, demo};
use clap::Args;
use posthaste_core::time::{Clock, Dice, Timestamp};
use report::Report;
use serde_json::json;
use sink::{Sink, read_message};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Measure how much this machine accepts and delivers.
#[derive(Args)]
#[command(after_help = "Examples:
  posthaste bench                                as much as it can
  posthaste bench --rate 500                     how long a message takes at 500 a second
  posthaste bench --endpoints 100 --apps 1 --connections 16
  posthaste bench --json
  POSTHASTE_DATABASE_URL=postgres://… posthaste bench --postgres

Each application has --endpoints / --apps endpoints. Exit code 1: a message was lost.")]
pub struct BenchArgs {
    /// For how long messages are sent
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,
    /// Messages a second; 0: each connection sends as soon as it has its answer
    #[arg(long, value_name = "N", default_value_t = 0)]
    rate: u32,
    /// Connections that send
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=1_024))]
    connections: u32,
    /// Applications
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    apps: u32,
    /// Endpoints of all applications together
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    endpoints: u32,
    /// Bytes of each payload
    #[arg(long, value_name = "N", default_value_t = 1_024,
          value_parser = clap::value_parser!(u32).range(64..=1_048_576))]
    bytes: u32,
    /// Measure with the PostgreSQL database that `database_url` names; its messages stay there
    #[arg(long)]
    postgres: bool,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

/// How long the last deliveries may take.
const SETTLE_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs the benchmark.
///
/// # Errors
/// It cannot be started, or something was lost.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    let name = format!("posthaste-bench-{:x}", SystemDice::new().roll());
    let folder = demo::Folder::at(PathBuf::from(name))?;
    let path = folder.0.display().to_string();
    let mut settings = vec![
        ("listen", "127.0.0.1:0"),
        ("dev", "true"),
        ("data_dir", path.as_str()),
        ("log.level", "error"),
    ];
    // Only on request: whoever has set it for a server at work does not expect to be measured.
    let url = if args.postgres { Some(database_url()?) } else { None };
    settings.extend(url.as_ref().map(|url| ("database_url", url.expose())));
    let config = Config::of(&settings)?;
    let runtime = serve::runtime()?;
    let report = runtime.block_on(async {
        let running = serve::start(&config, Parts { api: true, worker: true }).await?;
        let report = measure(&running, args).await;
        running.stop(config.shutdown_timeout).await?;
        report
    })?;
    let text = if args.json { report.json() } else { report.text() };
    cli::write(text.as_bytes())?;
    match report.lost() {
        0 => Ok(()),
        lost => Err(Failure::new(format!("{lost} deliveries were lost"))),
    }
}

fn database_url() -> Result<DatabaseUrl, Failure> {
    match Config::load(&Flags::default())?.database {
        Database::Postgres(url) => Ok(url),
        Database::Sqlite(_) => {
            Err(Failure::usage("--postgres needs a database_url that begins with postgres://"))
        }
    }
}

/// What the senders share.
struct Load {
    address: SocketAddr,
    heads: Vec<String>,
    padding: String,
    next: AtomicU64,
    started_at: Timestamp,
    ends_at: Timestamp,
    rate: u32,
}

async fn measure(running: &Running, args: &BenchArgs) -> Result<Report, Failure> {
    let address = running.address.ok_or_else(|| Failure::new("the server has no address"))?;
    let token = running.token(Duration::from_secs(24 * 3_600))?;
    let sink = Sink::start().await?;
    let client = Client::new(&format!("http://{address}"), &token)?;
    let heads = set_up(client, sink.address, args, &token).await?;
    let cpu_before = report::cpu_seconds();
    let started_at = SystemClock.now();
    let load = Arc::new(Load {
        address,
        heads,
        padding: "x".repeat(args.bytes.saturating_sub(64) as usize),
        next: AtomicU64::new(0),
        started_at,
        ends_at: started_at.after(Duration::from_secs(args.seconds.into())),
        rate: args.rate,
    });
    let senders: Vec<_> = (0..args.connections).map(|_| tokio::spawn(send(load.clone()))).collect();
    let mut accepted = Vec::new();
    for sender in senders {
        let sent = sender.await.map_err(|error| Failure::new(format!("a sender: {error}")))?;
        accepted.extend(sent?);
    }
    let accepted_at = SystemClock.now();
    let per_message = u64::from(args.endpoints.div_ceil(args.apps));
    let expected = accepted.len() as u64 * per_message;
    let give_up_at = accepted_at.after(SETTLE_MAX);
    while sink.arrivals().delivered() < expected && SystemClock.now() < give_up_at {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let arrivals = sink.arrivals();
    Ok(Report {
        accept_latencies: report::sorted(accepted),
        delivery_latencies: report::sorted(arrivals.latencies.clone()),
        expected,
        duplicates: arrivals.duplicates,
        accept_time: accepted_at.since(started_at),
        delivery_time: arrivals.last_at.since(started_at),
        cpu_seconds: cpu_before.zip(report::cpu_seconds()).map(|(before, after)| after - before),
    })
}

/// Creates applications and endpoints; returns the request heads that publish to each application.
async fn set_up(
    client: Client,
    sink: SocketAddr,
    args: &BenchArgs,
    token: &str,
) -> Result<Vec<String>, Failure> {
    let (apps, per_app) = (args.apps, args.endpoints.div_ceil(args.apps));
    let token = token.to_owned();
    let created = tokio::task::spawn_blocking(move || {
        let mut heads = Vec::new();
        for app in 0..apps {
            let body = json!({ "name": format!("bench {app}"), "uid": format!("bench-{app}") });
            client.post("/api/v1/app", body.to_string().into_bytes())?;
            for endpoint in 0..per_app {
                let body = json!({ "url": format!("http://{sink}/{app}/{endpoint}") });
                let path = format!("/api/v1/app/bench-{app}/endpoint");
                client.post(&path, body.to_string().into_bytes())?;
            }
            heads.push(format!(
                "POST /api/v1/app/bench-{app}/msg?with_content=false HTTP/1.1\r\nhost: bench\r\n\
                 authorization: Bearer {token}\r\ncontent-type: application/json\r\n"
            ));
        }
        Ok(heads)
    });
    created.await.unwrap_or_else(|error| Err(Failure::new(format!("the set-up: {error}"))))
}

/// Sends over one connection until the end; returns how long each acceptance took.
async fn send(load: Arc<Load>) -> Result<Vec<Duration>, Failure> {
    let broken = |error: std::io::Error| Failure::new(format!("a connection broke: {error}"));
    let mut stream = TcpStream::connect(load.address).await.map_err(broken)?;
    let _ = stream.set_nodelay(true);
    let mut accepted = Vec::new();
    let mut read = Vec::with_capacity(4 * 1024);
    loop {
        let number = load.next.fetch_add(1, Ordering::Relaxed);
        let Some(sent_at) = load.turn(number).await else { return Ok(accepted) };
        stream.write_all(load.request(number, sent_at).as_bytes()).await.map_err(broken)?;
        let answer = read_message(&mut stream, &mut read).await.map_err(broken)?;
        let Some((head, body)) = answer else {
            return Err(Failure::new("the server closed a connection"));
        };
        if !read.starts_with(b"HTTP/1.1 202") {
            let line = String::from_utf8_lossy(&read[..read.len().min(40)]).into_owned();
            return Err(Failure::new(format!("a message was refused: {line}")));
        }
        read.drain(..head + body);
        accepted.push(SystemClock.now().since(sent_at));
    }
}

impl Load {
    /// Waits for a message's turn; from when its latency counts, `None` at the end.
    ///
    /// With a rate, that is when it was due, so that a server that stalls cannot hide the messages
    /// that wait for it; what our own timer is late does not count.
    async fn turn(&self, number: u64) -> Option<Timestamp> {
        let now = SystemClock.now();
        if self.rate == 0 {
            return (now < self.ends_at).then_some(now);
        }
        let micros = number.saturating_mul(1_000_000) / u64::from(self.rate);
        let due = self.started_at.after(Duration::from_micros(micros));
        if due >= self.ends_at {
            return None;
        }
        if due <= now {
            return Some(due);
        }
        tokio::time::sleep(due.since(now)).await;
        Some(SystemClock.now())
    }

    fn request(&self, number: u64, sent_at: Timestamp) -> String {
        let index = usize::try_from(number).unwrap_or_default() % self.heads.len();
        let sent_at = sent_at.as_micros();
        let padding = &self.padding;
        let body = format!(
            r#"{{"eventType":"bench","payload":{{"n":{number},"at":{sent_at},"pad":"{padding}"}}}}"#
        );
        format!("{}content-length: {}\r\n\r\n{body}", self.heads[index], body.len())
    }
}

/// Number and time of sending, from a payload that `Load::request` wrote.
fn read_event(payload: &[u8]) -> Option<(u64, Timestamp)> {
    let text = std::str::from_utf8(payload.get(..payload.len().min(64))?).ok()?;
    let (number, rest) = text.strip_prefix(r#"{"n":"#)?.split_once(',')?;
    let (sent_at, _) = rest.strip_prefix(r#""at":"#)?.split_once(',')?;
    Some((number.parse().ok()?, Timestamp::from_micros(sent_at.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_back() {
        let payload = br#"{"n":7,"at":1700000000000001,"pad":"xxx"}"#;
        assert_eq!(read_event(payload), Some((7, Timestamp::from_micros(1_700_000_000_000_001))));
        assert_eq!(read_event(b"{}"), None);
        assert_eq!(read_event(b""), None);
    }
}
