//! `posthaste demo`: the whole product in half a minute, on this machine.
//!
//! A real server in a folder of its own, five receivers with different manners, real events over
//! the API. What the receivers saw is compared with what the server says: if an accepted event is
//! neither delivered, nor waiting, nor a dead letter, the demo fails.

mod board;
mod receiver;

use crate::cli;
use crate::client::Client;
use crate::config::Config;
use crate::env::{SystemClock, SystemDice};
use crate::failure::Failure;
use crate::serve::{self, Parts, Running};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use board::{Board, Row, Totals};
use clap::Args;
use posthaste_core::time::{Clock, Dice, Timestamp};
use receiver::{Part, Receiver};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// Watch real webhooks being delivered, retried, cut off and measured on this machine.
#[derive(Args)]
#[command(after_help = "Examples:
  posthaste demo
  posthaste demo --seconds 5 --rate 50

Exit code 0: every accepted event was delivered, is waiting or is a dead letter. 1: one is lost.")]
pub struct DemoArgs {
    /// For how long events are sent
    #[arg(long, value_name = "N", default_value_t = 15,
          value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Events sent a second; each goes to five endpoints
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u32).range(1..=500))]
    rate: u32,
}

/// Everything quicker than in production, so that a quarter of a minute shows it all.
const SETTINGS: [(&str, &str); 9] = [
    ("listen", "127.0.0.1:0"),
    ("dev", "true"),
    ("retry.delays", "500ms,1s,2s"),
    ("http.timeout", "2s"),
    ("breaker.failure_threshold", "5"),
    ("breaker.cooldown_max", "2s"),
    ("breaker.cooldown", "1s"),
    ("shutdown.timeout", "5s"),
    ("log.level", "error"),
];
const APPLICATION: &str = "demo";
const REPAINT_EVERY: Duration = Duration::from_millis(500);
/// How long the end may take after the last event was sent.
const SETTLE_MAX: Duration = Duration::from_secs(30);

/// Runs the demo.
///
/// # Errors
/// It cannot be started, or something was lost.
pub fn run(args: &DemoArgs) -> Result<(), Failure> {
    let folder = Folder::new()?;
    let path = folder.0.display().to_string();
    let mut settings = SETTINGS.to_vec();
    settings.push(("data_dir", &path));
    let config = Config::of(&settings)?;
    let logging = crate::logging::start(config.log);
    let runtime = serve::runtime()?;
    let outcome = runtime.block_on(async {
        let running = serve::start(&config, Parts { api: true, worker: true }).await?;
        let stage = Stage::set(&running, args).await;
        let told = match stage {
            Ok(stage) => tokio::select! {
                told = stage.tell() => told,
                _ = tokio::signal::ctrl_c() => Err(Failure::with(130, "the demo was interrupted")),
            },
            Err(failure) => Err(failure),
        };
        running.stop(config.shutdown_timeout).await?;
        told
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    drop(logging);
    outcome
}

/// A folder that goes away when it is dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    fn new() -> Result<Self, Failure> {
        let name = format!("posthaste-demo-{}-{:x}", std::process::id(), SystemDice::new().roll());
        Self::at(std::env::temp_dir().join(name))
    }

    /// # Errors
    /// The folder cannot be made.
    pub fn at(path: PathBuf) -> Result<Self, Failure> {
        crate::secrets::prepare_folder(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The server, its endpoints and their receivers.
struct Stage {
    client: Client,
    endpoints: Vec<(Receiver, String)>,
    seconds: u32,
    rate: u32,
    started_at: Timestamp,
}

impl Stage {
    async fn set(running: &Running, args: &DemoArgs) -> Result<Self, Failure> {
        let address = running.address.ok_or_else(|| Failure::new("the server has no address"))?;
        let token = running.token(Duration::from_secs(3_600))?;
        let client = Client::new(&format!("http://{address}"), &token)?;
        post(&client, "/api/v1/app", json!({ "name": "Demo", "uid": APPLICATION })).await?;
        cli::write(
            format!(
                "posthaste {} on http://{address}, in a temporary folder\n\
                 {} events a second for {} s, each to five endpoints\n\n",
                env!("CARGO_PKG_VERSION"),
                args.rate,
                args.seconds
            )
            .as_bytes(),
        )?;
        let dice = SystemDice::new();
        let mut endpoints = Vec::new();
        for part in Part::ALL {
            let mut key = [0; 32];
            dice.fill(&mut key);
            let secret = format!("whsec_{}", STANDARD.encode(key));
            let receiver = Receiver::start(part, &secret).await?;
            let mut endpoint = json!({
                "url": format!("http://{}/hook", receiver.address),
                "uid": part.name(), "description": part.about(), "secret": secret,
            });
            if part == Part::Dead {
                // An endpoint may have a policy of its own. Without retries, what the breaker lets
                // through becomes a dead letter at once.
                endpoint["policy"] = json!({ "retry": { "kind": "schedule", "delaysMs": [] } });
            }
            let created = post(&client, "/api/v1/app/demo/endpoint", endpoint).await?;
            endpoints.push((receiver, cli::cell(&created["id"])));
        }
        let started_at = SystemClock.now();
        Ok(Self { client, endpoints, seconds: args.seconds, rate: args.rate, started_at })
    }

    async fn tell(&self) -> Result<(), Failure> {
        let mut board = Board::new();
        let accepted = self.send(&mut board).await?;
        self.settle(&mut board, accepted).await?;
        let (totals, rows) = self.look(accepted).await?;
        board.show(self.elapsed(), totals, &rows)?;
        let status = get(&self.client, "/api/v1/status").await?;
        if !board.is_live() {
            cli::write(format!("\n{}", board::table(&rows)).as_bytes())?;
        }
        cli::write(format!("\n{}", summary(totals, &rows, &status)).as_bytes())?;
        check(totals, &rows, &status)
    }

    fn elapsed(&self) -> Duration {
        SystemClock.now().since(self.started_at)
    }

    /// Sends events at an even pace; returns how many were accepted.
    async fn send(&self, board: &mut Board) -> Result<u64, Failure> {
        let mut pace = interval(Duration::from_secs(1) / self.rate);
        let mut repaint = interval(REPAINT_EVERY);
        repaint.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let count = u64::from(self.seconds) * u64::from(self.rate);
        let recover_at = count * 2 / 5;
        let mut accepted = 0;
        while accepted < count {
            tokio::select! {
                _ = pace.tick() => {
                    self.publish(accepted).await?;
                    accepted += 1;
                }
                _ = repaint.tick() => {
                    let (totals, rows) = self.look(accepted).await?;
                    board.show(self.elapsed(), totals, &rows)?;
                }
            }
            if accepted == recover_at {
                self.endpoints.iter().for_each(|(receiver, _)| receiver.recover());
            }
        }
        // So short a demo that its middle was never passed still shows a recovery.
        self.endpoints.iter().for_each(|(receiver, _)| receiver.recover());
        Ok(accepted)
    }

    async fn publish(&self, number: u64) -> Result<(), Failure> {
        let message = json!({
            "eventType": "demo.event",
            "payload": { "number": number, "text": "Grüße 👋" },
        });
        post(&self.client, "/api/v1/app/demo/msg?with_content=false", message).await.map(drop)
    }

    /// Waits until every endpoint that can deliver has delivered all, and the dead one has a dead
    /// letter to show.
    async fn settle(&self, board: &mut Board, accepted: u64) -> Result<(), Failure> {
        let mut repaint = interval(REPAINT_EVERY);
        let give_up_at = SystemClock.now().after(SETTLE_MAX);
        while SystemClock.now() < give_up_at {
            repaint.tick().await;
            let (totals, rows) = self.look(accepted).await?;
            board.show(self.elapsed(), totals, &rows)?;
            let settled = |row: &Row| match row.part {
                Part::Dead => row.dead_letters > 0,
                _ => row.seen.delivered() + row.dead_letters == accepted,
            };
            if rows.iter().all(settled) {
                break;
            }
        }
        Ok(())
    }

    /// What the receivers saw and the server says now.
    async fn look(&self, accepted: u64) -> Result<(Totals, Vec<Row>), Failure> {
        let mut rows = Vec::new();
        for (receiver, id) in &self.endpoints {
            let path = format!("/api/v1/app/demo/endpoint/{id}/health");
            let health = get(&self.client, &path).await?;
            let path = format!("/api/v1/dead-letter?app=demo&endpoint={id}&limit=250");
            let letters = get(&self.client, &path).await?;
            rows.push(Row {
                part: receiver.part,
                seen: receiver.seen(),
                breaker: cli::cell(&health["breaker"]),
                waiting: health["waiting"].as_u64().unwrap_or(0),
                dead_letters: letters["data"].as_array().map_or(0, Vec::len) as u64,
                attempt_ms: ["p50Ms", "p95Ms", "p99Ms"].map(|name| health[name].as_f64()),
            });
        }
        let client = self.client.clone();
        let metrics = blocking(move || client.get_text("/metrics")).await?;
        let totals = Totals {
            accepted,
            breaker_openings: metric(&metrics, "posthaste_breaker_opened_total"),
            retries: metric(&metrics, "posthaste_verdicts_total{verdict=\"retry\"}"),
        };
        Ok((totals, rows))
    }
}

fn summary(totals: Totals, rows: &[Row], status: &Value) -> String {
    let count = |name: &str| status[name].as_u64().unwrap_or(0);
    let sum = |figure: fn(&Row) -> u64| rows.iter().map(figure).sum::<u64>();
    let times = &status["delivery_time_ms"];
    let ms = |name: &str| times[name].as_f64().map_or("-".to_owned(), |ms| format!("{ms:.1} ms"));
    let waiting = count("pending") + count("awaiting_retry") + count("in_flight");
    format!(
        "accepted          {} events, {} deliveries\n\
         delivered         {}, every signature checked by the receivers ({} bad)\n\
         retried           {}\n\
         dead letters      {}\n\
         still waiting     {waiting}, behind the open breaker of the dead endpoint\n\
         breaker openings  {}\n\
         duplicates        {}\n\
         delivery time     P50 {}  P95 {}  P99 {}, waiting for retries included\n",
        totals.accepted,
        totals.accepted * rows.len() as u64,
        count("delivered_last_hour"),
        sum(|row| row.seen.bad_signatures),
        totals.retries,
        count("dead_letter"),
        totals.breaker_openings,
        sum(|row| row.seen.duplicates),
        ms("p50"),
        ms("p95"),
        ms("p99"),
    )
}

/// Every accepted delivery is somewhere, and what the server calls delivered was received.
fn check(totals: Totals, rows: &[Row], status: &Value) -> Result<(), Failure> {
    let count = |name: &str| status[name].as_u64().unwrap_or(0);
    let open = ["pending", "awaiting_retry", "in_flight", "held"].map(count).iter().sum::<u64>();
    let delivered = count("delivered_last_hour");
    let known = delivered + count("dead_letter") + open;
    let expected = totals.accepted * rows.len() as u64;
    let received = rows.iter().map(|row| row.seen.delivered()).sum::<u64>();
    let bad = rows.iter().map(|row| row.seen.bad_signatures).sum::<u64>();
    if known != expected {
        return Err(Failure::new(format!("{expected} deliveries accepted, {known} accounted for")));
    }
    if received != delivered {
        return Err(Failure::new(format!("{delivered} called delivered, {received} received")));
    }
    if bad > 0 {
        return Err(Failure::new(format!("{bad} signatures were wrong")));
    }
    cli::write(b"\nNothing was lost.\n")
}

/// The value of a sample in the Prometheus text format; 0 if it is not there.
fn metric(page: &str, sample: &str) -> u64 {
    let line = page.lines().find_map(|line| line.strip_prefix(sample));
    line.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
}

async fn get(client: &Client, path: &str) -> Result<Value, Failure> {
    let (client, path) = (client.clone(), path.to_owned());
    blocking(move || client.get(&path, &[])).await
}

async fn post(client: &Client, path: &str, body: Value) -> Result<Value, Failure> {
    let (client, path) = (client.clone(), path.to_owned());
    blocking(move || client.post(&path, body.to_string().into_bytes())).await
}

/// The client blocks, so it works on a thread that may.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Failure::new(format!("a request broke off: {error}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_s_settings_are_valid() {
        let config = Config::of(&SETTINGS).unwrap();
        assert_eq!(config.retry.attempts_max(), 4);
    }

    #[test]
    fn a_metric_is_read() {
        let page = "# HELP x\nx_total 3\nx{verdict=\"retry\"} 4\n";
        assert_eq!(metric(page, "x_total"), 3);
        assert_eq!(metric(page, "x{verdict=\"retry\"}"), 4);
        assert_eq!(metric(page, "y"), 0);
    }

    #[test]
    fn what_is_lost_is_noticed() {
        let totals = Totals { accepted: 2, ..Totals::default() };
        let row = || Row {
            part: Part::Dead,
            seen: receiver::Seen::default(),
            breaker: "open".to_owned(),
            waiting: 1,
            dead_letters: 1,
            attempt_ms: [None; 3],
        };
        let status = json!({ "dead_letter": 1, "pending": 1 });
        assert!(check(totals, &[row()], &status).is_ok());
        let status = json!({ "dead_letter": 1 });
        let failure = check(totals, &[row()], &status).unwrap_err();
        assert!(failure.line.contains("2 deliveries accepted, 1 accounted for"), "{failure}");
        let status = json!({ "dead_letter": 1, "delivered_last_hour": 1 });
        assert!(check(totals, &[row()], &status).is_err(), "nobody received it");
    }
}
