//! Many processes on one PostgreSQL, under load, while processes are killed and the server
//! restarts: nothing that was accepted is lost, and the receiver's count is ours.
//!
//! `POSTHASTE_CHAOS_SECONDS` sets how long it goes on (120).

mod common;

use common::database::Database;
use common::load::Load;
use common::{Posthaste, Setup};
use posthaste_testkit::{Receiver, Reply};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use xtask::services::postgres::{self, Server, Stop};

const APIS: usize = 2;
const WORKERS: usize = 3;
const KILL_EVERY: Duration = Duration::from_secs(3);

/// Who was told 200, by message: in which times between faults.
#[derive(Default)]
struct Ledger {
    /// Counts the faults.
    time: u64,
    requests: u64,
    answered: BTreeMap<u64, Vec<u64>>,
}

impl Ledger {
    fn reply(&mut self, number: u64) -> Reply {
        self.requests += 1;
        if self.requests.is_multiple_of(11) {
            return Reply::status(503);
        }
        self.answered.entry(number).or_default().push(self.time);
        Reply::ok()
    }

    /// Answers beyond the first; each must have a fault between itself and the one before.
    fn duplicates(&self) -> usize {
        let pairs = self.answered.iter().flat_map(|(number, times)| {
            times.windows(2).map(move |pair| (number, pair[0], pair[1]))
        });
        pairs.fold(0, |count, (number, first, second)| {
            assert!(first < second, "message {number} came twice though nothing had failed");
            count + 1
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_processes_are_killed_and_the_server_restarts() {
    let seconds = std::env::var("POSTHASTE_CHAOS_SECONDS");
    let length = Duration::from_secs(seconds.map_or(120, |text| text.parse().unwrap()));
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let receiver = receiver(ledger.clone()).await;
    let mut server = Server::start(postgres::find().unwrap()).unwrap();
    let api = Setup::on(Database::on(server.url()))
        .with("POSTHASTE_RETRY__DELAYS", "50ms,100ms,200ms,200ms,200ms,200ms,200ms,200ms")
        .with("POSTHASTE_LOG__LEVEL", "warn")
        .command(&["serve", "--dev", "--no-worker", "--listen", "127.0.0.1:0"]);
    let worker = api.worker();
    let mut apis: Vec<Posthaste> = (0..APIS).map(|_| api.start()).collect();
    let mut workers: Vec<Posthaste> = (0..WORKERS).map(|_| worker.start()).collect();
    let application = apis[0].application().await;
    apis[0].endpoint(&application, &receiver.url("/hook"), Value::Null).await;

    let load = Load::start(apis.iter().map(Posthaste::url).collect(), &application);
    let began = Instant::now();
    let mut restarts = [(length / 3, Stop::Fast), (length * 2 / 3, Stop::Immediate)].into_iter();
    let mut restart = restarts.next();
    let mut kills = 0;
    while began.elapsed() < length {
        // More than was under way comes through between two faults.
        let before = ledger.lock().unwrap().requests;
        tokio::time::sleep(KILL_EVERY).await;
        receiver.wait_for(usize::try_from(before).unwrap() + 50).await;
        ledger.lock().unwrap().time += 1;
        match restart {
            Some((at, stop)) if began.elapsed() >= at => {
                server.restart(stop).unwrap();
                restart = restarts.next();
            }
            _ => {
                kills += 1;
                match kills % (APIS + WORKERS) {
                    place if place < APIS => {
                        let again = api.start();
                        load.turn_to(place, again.url());
                        std::mem::replace(&mut apis[place], again).kill();
                    }
                    place => {
                        let again = worker.start();
                        std::mem::replace(&mut workers[place - APIS], again).kill();
                    }
                }
            }
        }
        ledger.lock().unwrap().time += 1;
    }
    assert!(restart.is_none(), "the server did not restart twice");
    let accepted = load.stop();
    let open = ["pending", "awaiting_retry", "in_flight"];
    let status = apis[0].status_until(|status| open.iter().all(|state| status[state] == 0)).await;

    let ledger = ledger.lock().unwrap();
    let missing: Vec<_> =
        accepted.iter().filter(|number| !ledger.answered.contains_key(number)).collect();
    assert!(missing.is_empty(), "{} accepted, missing: {missing:?}", accepted.len());
    let delivered = ledger.answered.len();
    assert_eq!((&status["dead_letter"], &status["held"]), (&Value::from(0), &Value::from(0)));
    assert_eq!(status["delivered_last_hour"], delivered, "{status:#}");
    let duplicates = ledger.duplicates();
    println!(
        "{kills} kills, 2 restarts of the server: {} accepted, {delivered} delivered, \
         {duplicates} duplicates",
        accepted.len()
    );
}

async fn receiver(ledger: Arc<Mutex<Ledger>>) -> Receiver {
    Receiver::with(move |request| {
        let payload: Value = serde_json::from_slice(&request.body).unwrap();
        ledger.lock().unwrap().reply(payload["number"].as_u64().unwrap())
    })
    .await
}
