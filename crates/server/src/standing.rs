//! How all deliveries stand, as gauges for Prometheus.

use posthaste_core::time::Timestamp;
use posthaste_store::Store;
use posthaste_store::history::Status;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a reading is shown before the store is asked again: counting what is open takes a
/// while when much is, and anybody may ask for metrics as often as they like.
const FRESH_FOR: Duration = Duration::from_secs(5);

/// The last reading of the store's status row.
#[derive(Debug, Default)]
pub(crate) struct Standing(Mutex<Reading>);

#[derive(Debug, Default)]
struct Reading {
    /// When somebody last began to ask; the others show what is known until the answer is there.
    asked_at: Option<Timestamp>,
    /// `None`: not asked yet, or the store did not answer.
    known: Option<Status>,
}

impl Standing {
    /// Appends the Prometheus text format, version 0.0.4; nothing when the store does not answer.
    pub async fn render(&self, store: &dyn Store, now: Timestamp, text: &mut String) {
        if self.is_mine_to_ask(now) {
            let answer = store.status(now).await;
            let known = answer.map_err(|error| tracing::warn!(%error, "metrics.no_status")).ok();
            self.lock().known = known;
        }
        if let Some(status) = &self.lock().known {
            write(status, now, text);
        }
    }

    fn is_mine_to_ask(&self, now: Timestamp) -> bool {
        let mut reading = self.lock();
        let fresh = reading.asked_at.is_some_and(|asked_at| now.since(asked_at) < FRESH_FOR);
        if !fresh {
            reading.asked_at = Some(now);
        }
        !fresh
    }

    fn lock(&self) -> MutexGuard<'_, Reading> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
