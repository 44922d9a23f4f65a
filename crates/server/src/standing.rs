//! How all deliveries and the database stand, as gauges for Prometheus and as warnings.

use posthaste_core::time::{Clock, Timestamp};
use posthaste_store::Store;
use posthaste_store::diagnosis::{Diagnosis, Warning};
use posthaste_store::history::Status;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a reading is shown before the store is asked again: counting what is open takes a
/// while when much is, and anybody may ask for metrics as often as they like.
const FRESH_FOR: Duration = Duration::from_secs(5);

/// The last reading of the store's status row, and of how the database is.
pub(crate) struct Standing {
    clock: Arc<dyn Clock>,
    status: Mutex<Reading<Status>>,
    diagnosis: Mutex<Reading<Diagnosis>>,
}

#[derive(Debug)]
struct Reading<T> {
    /// When somebody last began to ask; the others show what is known until the answer is there.
    asked_at: Option<Timestamp>,
    /// `None`: not asked yet, or the store did not answer.
    known: Option<T>,
}

impl<T> Default for Reading<T> {
    fn default() -> Self {
        Self { asked_at: None, known: None }
    }
}

impl Standing {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, status: Mutex::default(), diagnosis: Mutex::default() }
    }

    /// Appends the Prometheus text format, version 0.0.4; nothing when the store does not answer.
    pub async fn render(&self, store: &dyn Store, now: Timestamp, text: &mut String) {
        if is_mine_to_ask(&self.status, now) {
            let answer = store.status(now).await;
            lock(&self.status).known = known(answer);
        }
        self.ask(store, now).await;
        if let Some(status) = &lock(&self.status).known {
            write(status, now, text);
        }
        if let Some(diagnosis) = &lock(&self.diagnosis).known {
            write_diagnosis(diagnosis, text);
        }
    }

    /// What will go wrong with the database; nothing when it does not answer.
    pub async fn warnings(&self, store: &dyn Store, now: Timestamp) -> Vec<Warning> {
        self.ask(store, now).await;
        let diagnosis = lock(&self.diagnosis);
        diagnosis.known.as_ref().map(|known| known.warnings.clone()).unwrap_or_default()
    }

    async fn ask(&self, store: &dyn Store, now: Timestamp) {
        if is_mine_to_ask(&self.diagnosis, now) {
            // Read anew: it is compared with that of the database.
            let answer = store.diagnose(self.clock.now()).await;
            lock(&self.diagnosis).known = known(answer);
        }
    }
}

fn is_mine_to_ask<T>(reading: &Mutex<Reading<T>>, now: Timestamp) -> bool {
    let mut reading = lock(reading);
    let fresh = reading.asked_at.is_some_and(|asked_at| now.since(asked_at) < FRESH_FOR);
    if !fresh {
        reading.asked_at = Some(now);
    }
    !fresh
}

fn known<T>(answer: posthaste_store::Result<T>) -> Option<T> {
    if let Err(error) = &answer
        && error.reason().is_none()
    {
        tracing::warn!(%error, "metrics.no_status");
    }
    answer.ok()
}

fn lock<T>(reading: &Mutex<Reading<T>>) -> MutexGuard<'_, Reading<T>> {
    reading.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(status: &Status, now: Timestamp, text: &mut String) {
    text.push_str("# HELP posthaste_deliveries Deliveries that have not ended well, by state.\n");
    text.push_str("# TYPE posthaste_deliveries gauge\n");
    for (state, count) in [
        ("pending", status.pending),
        ("awaiting_retry", status.awaiting_retry),
        ("in_flight", status.in_flight),
        ("dead_letter", status.dead_letter),
        ("held", status.held),
    ] {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "posthaste_deliveries{{state=\"{state}\"}} {count}");
    }
    let age = |since: Option<Timestamp>| since.map_or(0.0, |at| now.since(at).as_secs_f64());
    let accepted_at = status.oldest_undelivered.map(|(_, accepted_at)| accepted_at);
    for (name, about, seconds) in [
        (
            "oldest_undelivered",
            "Since the oldest delivery on its way was accepted.",
            age(accepted_at),
        ),
        (
            "oldest_due",
            "Since the delivery that has waited longest for its attempt was due.",
            age(status.oldest_due_at),
        ),
    ] {
        let _ = write!(
            text,
            "# HELP posthaste_{name}_seconds {about}\n\
             # TYPE posthaste_{name}_seconds gauge\n\
             posthaste_{name}_seconds {seconds}\n"
        );
    }
    for (name, about, count) in [
        ("breakers_open", "Endpoints whose breaker is not closed.", status.breakers_open),
        ("endpoints_disabled", "Endpoints that are disabled.", status.endpoints_disabled),
        ("workers", "Workers that live.", status.workers),
    ] {
        let _ = write!(
            text,
            "# HELP posthaste_{name} {about}\n\
             # TYPE posthaste_{name} gauge\n\
             posthaste_{name} {count}\n"
        );
    }
}

fn write_diagnosis(diagnosis: &Diagnosis, text: &mut String) {
    let seconds = |us: i64| us as f64 / 1e6;
    for (name, about, value) in [
        (
            "transaction_ids_used",
            "Share of the database's transaction ids that is used up; at 1 it stops.",
            diagnosis.transaction_ids_used,
        ),
        (
            "oldest_snapshot_seconds",
            "Since the oldest transaction keeps dead rows of the database from being cleared away.",
            diagnosis.oldest_snapshot.map(|age| age.as_secs_f64()),
        ),
        (
            "clock_ahead_seconds",
            "How far the database's clock is ahead of this machine's.",
            diagnosis.clock_ahead_us.map(seconds),
        ),
    ] {
        let Some(value) = value else { continue };
        let _ = write!(
            text,
            "# HELP posthaste_database_{name} {about}\n\
             # TYPE posthaste_database_{name} gauge\n\
             posthaste_database_{name} {value}\n"
        );
    }
}
