//! Collects records and writes them in batches: attempts, states, health and sketches together.
//!
//! **Invariant:** a record that was handed over is written, or its delivery's lease runs out; when
//! the store is away the recorder keeps what it has and tries again, and attempts wait for room.

use crate::lanes::Lanes;
use crate::sketches::Sketches;
use crate::{POLL_EVERY, Shared};
use posthaste_core::delivery::{Record, Verdict};
use posthaste_core::endpoint::Endpoint;
use posthaste_core::lane::Event;
use posthaste_core::limits::RECORD_BATCH_MAX;
use posthaste_core::time::{Timestamp, within};
use posthaste_store::Kind;
use posthaste_store::outbox::{LaneEvent, RecordBatch, Recorded};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

/// Records that may wait for the writer.
const WAITING_MAX: usize = 4 * RECORD_BATCH_MAX;
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);

/// Where attempts hand their records in.
#[derive(Clone)]
pub struct Recorder(mpsc::Sender<(Record, Arc<Endpoint>)>);

/// The other end: collects records and writes them.
pub struct Records(mpsc::Receiver<(Record, Arc<Endpoint>)>);

impl Recorder {
    pub fn channel() -> (Self, Records) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Self(sender), Records(receiver))
    }

    /// Returns when there was room; the record is written some milliseconds later.
    pub async fn record(&self, record: Record, endpoint: Arc<Endpoint>) {
        if self.0.send((record, endpoint)).await.is_err() {
            // The worker has stopped and given the lease back: the delivery is attempted again.
            tracing::warn!("recorder.gone");
        }
    }
}

impl Records {
    /// Writes until every `Recorder` is gone, or `finish` is notified, and all is written.
    pub(crate) async fn run(mut self, shared: Arc<Shared>, finish: Arc<Notify>) {
        let mut sketches = Sketches::default();
        let mut batch = Vec::with_capacity(RECORD_BATCH_MAX);
        loop {
            let flush = tokio::time::sleep(sketches.flush_in(shared.clock.now()));
            let open = tokio::select! {
                count = self.0.recv_many(&mut batch, RECORD_BATCH_MAX) => count > 0,
                () = flush => true,
                () = finish.notified() => {
                    // What is in the channel still comes out of it.
                    self.0.close();
                    continue;
                }
            };
            for (record, _) in &batch {
                sketches.add(record);
            }
            let now = shared.clock.now();
            let due = if open { sketches.due(now) } else { sketches.all(now) };
            if !batch.is_empty() || !due.is_empty() {
                let records = std::mem::replace(&mut batch, Vec::with_capacity(RECORD_BATCH_MAX));
                let settings = &shared.settings;
                let whole = RecordBatch {
                    worker_id: settings.worker_id,
                    now,
                    rules: settings.rules,
                    records,
                    sketches: due,
                };
                let due_soon = whole.records.iter().any(|(record, _)| is_due_soon(record, now));
                let recorded = write(&shared, whole).await;
                let due_now = recorded.due_now;
                settle(&shared, recorded).await;
                if due_now || due_soon {
                    shared.queue.nudge();
                }
            }
            if !open {
                return;
            }
        }
    }
}

/// Whether a retry is due before the dispatcher looks by itself, so that it has to be told.
fn is_due_soon(record: &Record, now: Timestamp) -> bool {
    matches!(record.verdict, Verdict::RetryAt(due_at) if due_at < now.after(POLL_EVERY))
}

/// Tries until the store takes it, with growing waits. A batch that it will never take is halved
/// until the record at fault is alone; that one is dropped, and its lease runs out.
async fn write(shared: &Shared, batch: RecordBatch) -> Recorded {
    let mut whole = Recorded::default();
    let mut open = vec![batch];
    let mut wait = Duration::from_millis(50);
    while let Some(mut batch) = open.pop() {
        match shared.store.record(batch.clone()).await {
            Ok(recorded) => merge(&mut whole, recorded),
            Err(error) if error.kind() == Kind::Internal && batch.records.len() > 1 => {
                let records = batch.records.split_off(batch.records.len() / 2);
                open.push(RecordBatch { records, sketches: Vec::new(), ..batch });
                open.push(batch);
            }
            Err(error) if error.kind() == Kind::Internal => {
                for (record, _) in &batch.records {
                    let key = record.delivery.key;
                    tracing::error!(
                        %error,
                        message_id = %key.message_id,
                        endpoint_id = %key.endpoint_id,
                        "recorder.record_dropped"
                    );
                }
            }
            Err(error) => {
                shared.metrics.record_failed();
                complain!(error, records = batch.records.len(), "recorder.store_failed");
                tokio::time::sleep(wait / 2 + within(wait / 2, shared.dice.roll())).await;
                wait = (wait * 2).min(RETRY_AFTER_MAX);
                open.push(batch);
            }
        }
    }
    whole
}

fn merge(whole: &mut Recorded, part: Recorded) {
    whole.stale.extend(part.stale);
    whole.lanes.extend(part.lanes);
    whole.events.extend(part.events);
    whole.due_now |= part.due_now;
}

async fn settle(shared: &Shared, recorded: Recorded) {
    for key in &recorded.stale {
        shared.metrics.went_stale();
        tracing::warn!(
            message_id = %key.message_id,
            endpoint_id = %key.endpoint_id,
            "delivery.lease_lost"
        );
    }
    for event in &recorded.events {
        shared.metrics.lane_event(&event.event);
        announce(event);
    }
    give_back(shared, &shared.lanes, &recorded).await;
}

/// What waits in memory for a lane that may not go now returns to the store.
async fn give_back(shared: &Shared, lanes: &Lanes, recorded: &Recorded) {
    let leases = lanes.refresh(&recorded.lanes);
    if leases.is_empty() {
        return;
    }
    if let Err(error) = shared.store.give_back(leases, shared.clock.now()).await {
        // Their leases run out by themselves.
        complain!(error, "recorder.give_back_failed");
    }
}

fn announce(event: &LaneEvent) {
    let LaneEvent { application_id, endpoint_id, event } = event;
    let ms = Timestamp::as_millis;
    match *event {
        Event::Opened { until } => {
            tracing::warn!(%endpoint_id, %application_id, until_ms = ms(until), "breaker.opened");
        }
        Event::Reopened { until } => {
            let until_ms = ms(until);
            tracing::info!(%endpoint_id, %application_id, until_ms, "breaker.reopened");
        }
        Event::Closed => tracing::info!(%endpoint_id, %application_id, "breaker.closed"),
        Event::Failing { percent, since } => {
            let since_ms = ms(since);
            tracing::warn!(%endpoint_id, %application_id, percent, since_ms, "endpoint.failing");
        }
        Event::Exhausted { since } => {
            let (reason, since_ms) = ("failing", ms(since));
            tracing::error!(%endpoint_id, %application_id, reason, since_ms, "endpoint.disabled");
        }
        Event::Gone => {
            tracing::error!(%endpoint_id, %application_id, reason = "gone", "endpoint.disabled");
        }
    }
}
