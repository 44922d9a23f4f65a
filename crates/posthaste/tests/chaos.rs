//! kill -9 at random moments under load, again and again: nothing that was accepted is lost, and
//! what came twice is what a kill cut off between its answer and its record.
//!
//! `POSTHASTE_CHAOS_ROUNDS` sets the number of kills (20), `POSTHASTE_CHAOS_SEED` the moments.

mod common;

use common::Setup;
use common::load::Load;
use posthaste_testkit::{Receiver, Reply};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// Requests between two kills, at least and at most.
const REQUESTS: std::ops::Range<u64> = 20..400;
/// Answers of a life that may have been unrecorded when it was killed.
const UNRECORDED_MAX: u64 = 300;

/// What the receiver saw: for each message its answers of 200, as (life, place within the life).
#[derive(Default)]
struct Ledger {
    life: u64,
    requests: u64,
    answered: BTreeMap<u64, Vec<(u64, u64)>>,
    seen: BTreeSet<u64>,
    /// Requests of each life that ended.
    lengths: Vec<u64>,
}

impl Ledger {
    fn reply(&mut self, number: u64) -> Reply {
        self.requests += 1;
        // One in seven fails at first, so that kills meet retries too.
        if self.seen.insert(number) && number.is_multiple_of(7) {
            return Reply::status(503);
        }
        self.answered.entry(number).or_default().push((self.life, self.requests));
        Reply::ok()
    }

    fn end_life(&mut self) {
        self.lengths.push(self.requests);
        self.life += 1;
        self.requests = 0;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_the_process_is_killed_again_and_again() {
    let rounds = variable("POSTHASTE_CHAOS_ROUNDS", 20);
    let mut dice = variable("POSTHASTE_CHAOS_SEED", 42);
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let receiver = receiver(ledger.clone()).await;
    let setup = Setup::new()
        .with("POSTHASTE_RETRY__DELAYS", "50ms,100ms,200ms,200ms,200ms,200ms,200ms,200ms")
        .with("POSTHASTE_LOG__LEVEL", "warn");
    let mut server = setup.start();
    let application = server.application().await;
    server.endpoint(&application, &receiver.url("/hook"), Value::Null).await;

    let load = Load::start(vec![server.url()], &application);
    for _ in 0..rounds {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let more = REQUESTS.start + (dice >> 33) % (REQUESTS.end - REQUESTS.start);
        receiver.wait_for(receiver.requests().len() + usize::try_from(more).unwrap()).await;
        server.kill();
        ledger.lock().unwrap().end_life();
        server = setup.start();
        load.turn_to(0, server.url());
    }
    let accepted = load.stop();
    let status = server
        .status_until(|status| {
            ["pending", "awaiting_retry", "in_flight"].iter().all(|state| status[state] == 0)
        })
        .await;
    let dead = status["dead_letter"].as_u64().unwrap();

    let ledger = ledger.lock().unwrap();
    let missing: Vec<_> =
        accepted.iter().filter(|number| !ledger.answered.contains_key(number)).collect();
    assert!(
        missing.len() as u64 <= dead,
        "{} of {} accepted messages are neither delivered nor dead letters: {missing:?}",
        missing.len(),
        accepted.len()
    );
    let duplicates = ledger.duplicates();
    println!(
        "{rounds} kills: {} accepted, {} delivered, {dead} dead letters, {duplicates} duplicates",
        accepted.len(),
        ledger.answered.len(),
    );
}

impl Ledger {
    /// Counts the answers beyond the first, each of which must be explained by a kill between the
    /// one before and its record.
    fn duplicates(&self) -> usize {
        let mut count = 0;
        for (number, answers) in &self.answered {
            for pair in answers.windows(2) {
                let [(life, place), (later, _)] = pair else { continue };
                count += 1;
                assert!(life < later, "message {number} was sent twice within one life");
                let length = self.lengths[usize::try_from(*life).unwrap()];
                assert!(
                    length - place <= UNRECORDED_MAX,
                    "message {number} was sent again though it was answered {} requests before \
                     the kill",
                    length - place
                );
            }
        }
        count
    }
}

async fn receiver(ledger: Arc<Mutex<Ledger>>) -> Receiver {
    Receiver::with(move |request| {
        let payload: Value = serde_json::from_slice(&request.body).unwrap();
        ledger.lock().unwrap().reply(payload["number"].as_u64().unwrap())
    })
    .await
}

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}
