//! `Upkeep`: workers and their leases, sweeps, tasks, retention. Everything in bounded steps.

use super::PostgresStore;
use super::db::{Column, Tx, Uuid, params};
use super::diagnosis::diagnose;
use super::intake::KEPT_FOR;
use super::lanes::micros;
use super::partitions::{drop_partitions, forget_strays, make_partitions};
use crate::Result;
use crate::diagnosis::Diagnosis;
use crate::error::Reason;
use crate::lanes::{LaneState, minute_of};
use crate::monotonic::monotonic;
use crate::rows;
use crate::upkeep::{Replayable, Step, TakenIn, Task, TaskStatus, Upkeep};
use async_trait::async_trait;
use posthaste_core::delivery::{Cause, DeliveryKey, DeliveryState};
use posthaste_core::id::{EndpointId, MessageId, TaskId, WorkerId};
use posthaste_core::limits::HEARTBEAT_LOST_AFTER;
use posthaste_core::time::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) mod sql {
    crate::queries::queries! { "../../sql/postgres/upkeep.sql":
        WORKER_SEE, WORKER_HEARTBEAT, WORKERS, WORKER_SILENT, WORKER_DELETE, LEASES_OF,
        LEASES_EXPIRED, SWEEP_NEXT, SWEEP_FIND, SWEEP_HOLD, SWEEP_CANCEL, SWEEP_DONE, TASK_INSERT,
        TASK_FIND, TASK_NEXT, REPLAY_DEAD, REPLAY_HELD, REPLAY_REOPEN, REPLAY_RELEASE,
        TASK_ADVANCE, PRUNE_PAYLOADS, PRUNE_IDEMPOTENCY, PRUNE_SKETCHES, PRUNE_TALLIES, CHECK,
        CHECK_WRITE, CHECK_LOCKS, CLOCK, TRANSACTION_IDS, SNAPSHOT_OLDEST, ENQUEUED_TAKE,
        ENQUEUED_DELETE, ENQUEUED_REFUSE, PRUNE_ENQUEUED,
    }
}

/// Workers of one database that are looked at.
const WORKERS_MAX: i64 = 1_024;
/// Rows of one step.
const STEP_ROWS: usize = 1_000;
/// Deliveries replayed in one step.
const REPLAY_ROWS: usize = 500;
/// Payloads are large; fewer of them go at once.
const PRUNE_PAYLOAD_ROWS: usize = 500;
/// Windows and counts are read for 24 h; an hour more is kept.
const WINDOWS_KEPT: Duration = Duration::from_secs(25 * 3_600);
/// A silent worker that holds nothing is forgotten after this long: whatever transaction was about
/// to give it a lease is over.
const WORKER_FORGOTTEN_AFTER: Duration = Duration::from_secs(3_600);

#[async_trait]
impl Upkeep for PostgresStore {
    async fn heartbeat(&self, worker: WorkerId, now: Timestamp) -> Result<()> {
        let row = (Uuid::from(worker), micros(now));
        transact!(self.core, Write, |tx| tx.run(sql::WORKER_HEARTBEAT, params![row.0, row.1]).await)
            .map(drop)
    }

    async fn recover(&self, now: Timestamp, silent_since: Timestamp) -> Result<u64> {
        let forgotten = micros(now.before(WORKER_FORGOTTEN_AFTER));
        let workers = transact!(self.core, Read, |tx| {
            tx.all(sql::WORKERS, params![WORKERS_MAX, forgotten], |row| {
                Ok((row.id::<WorkerId>()?, row.time()?))
            })
            .await
        })?;
        let mut released = 0;
        for (worker, heartbeat_at) in workers {
            if heartbeat_at < silent_since {
                released += self.release_all(worker, now, true).await?;
                self.drop_worker(worker, now.before(WORKER_FORGOTTEN_AFTER)).await?;
            } else {
                released += self.release_expired(worker, now).await?;
            }
        }
        Ok(released)
    }

    async fn retire(&self, worker: WorkerId, now: Timestamp) -> Result<()> {
        self.release_all(worker, now, false).await?;
        // Its row stays: a lease that is being given to it now is found there by `recover`.
        let silent_since = now.before(HEARTBEAT_LOST_AFTER + Duration::from_micros(1));
        let row = (Uuid::from(worker), micros(silent_since));
        transact!(self.core, Write, |tx| tx.run(sql::WORKER_SILENT, params![row.0, row.1]).await)
            .map(drop)
    }

    async fn step(&self, now: Timestamp) -> Result<Step> {
        transact!(self.core, Indexed, |tx| step(tx, now).await)
    }

    async fn start_task(&self, task: Task) -> Result<()> {
        transact!(self.core, Write, |tx| {
            let row = params![
                Uuid::from(task.id),
                Uuid::from(task.endpoint_id),
                micros(task.since),
                micros(task.until),
                rows::task_states(&task.states),
                task.rate_per_second.map(i64::from),
                i64::from(task.status == TaskStatus::Finished),
                i64::try_from(task.replayed).unwrap_or(i64::MAX),
                task.cursor.map(Uuid::from),
                micros(task.created_at),
                micros(task.updated_at),
                i64::try_from(task.skipped).unwrap_or(i64::MAX),
            ];
            tx.run(sql::TASK_INSERT, row).await.map(drop)
        })
    }

    async fn task(&self, id: TaskId) -> Result<Option<Task>> {
        transact!(self.core, Read, |tx| tx
            .one(sql::TASK_FIND, params![Uuid::from(id)], rows::task)
            .await)
    }

    async fn prune(&self, now: Timestamp) -> Result<u64> {
        make_partitions(&self.core, now).await?;
        let mut pruned = 0;
        loop {
            let rows = transact!(self.core, Indexed, |tx| prune(tx, now).await)?;
            pruned += rows.iter().sum::<u64>();
            let full = [PRUNE_PAYLOAD_ROWS, STEP_ROWS, STEP_ROWS, STEP_ROWS, STEP_ROWS];
            if rows.iter().zip(full).all(|(rows, full)| *rows < full as u64) {
                return Ok(pruned);
            }
        }
    }

    async fn forget(&self, accepted_before: Timestamp) -> Result<u64> {
        let weeks = drop_partitions(&self.core, accepted_before).await?;
        let strays = forget_strays(&self.core, accepted_before).await?;
        Ok(weeks + strays)
    }

    fn nudge(&self) {
        self.nudges.send();
    }

    async fn nudged(&self) {
        self.nudges.heard().await;
    }

    async fn take_in(&self, now: Timestamp) -> Result<TakenIn> {
        self.take_in_batch(now).await
    }

    async fn enqueued(&self) {
        self.nudges.enqueued().await;
    }

    async fn check(&self) -> Result<()> {
        transact!(self.core, Write, |tx| {
            // Who asks waits for the answer.
            tx.batch("SET LOCAL lock_timeout = '2s'").await?;
            tx.get(sql::CHECK, params![], |row| row.int()).await?;
            tx.run(sql::CHECK_WRITE, params![]).await?;
            tx.batch(sql::CHECK_LOCKS).await
        })
    }

    fn trouble(&self) -> Option<Reason> {
        self.core.pool.availability.reason()
    }

    async fn diagnose(&self, now: Timestamp) -> Result<Diagnosis> {
        let asked = monotonic();
        let age_max = self.core.snapshot_age_max;
        transact!(self.core, Read, |tx| diagnose(tx, now, asked, age_max).await)
    }

    async fn close(&self) -> Result<()> {
        self.nudges.close();
        self.writer.close().await;
        self.core.pool.close();
        Ok(())
    }
}

impl PostgresStore {
    /// Releases all leases of a worker.
    ///
    /// Whether a lease is in force is looked at under the lock of its lane, so a record that comes
    /// between is never undone.
    async fn release_all(&self, worker: WorkerId, now: Timestamp, counted: bool) -> Result<u64> {
        let mut released = 0;
        loop {
            let (found, count) = transact!(self.core, Indexed, |tx| {
                let key = params![Uuid::from(worker), STEP_ROWS as i64];
                let keys = tx.all(sql::LEASES_OF, key, delivery_key).await?;
                let count = tx
                    .release(&keys, now, counted, |_, open| open.lease_worker == Some(worker))
                    .await?;
                Ok((keys.len(), count))
            })?;
            released += count as u64;
            if found < STEP_ROWS {
                return Ok(released);
            }
        }
    }

    async fn release_expired(&self, worker: WorkerId, now: Timestamp) -> Result<u64> {
        let released = transact!(self.core, Indexed, |tx| {
            let key = params![Uuid::from(worker), micros(now), STEP_ROWS as i64];
            let keys = tx.all(sql::LEASES_EXPIRED, key, delivery_key).await?;
            tx.release(&keys, now, true, |_, open| {
                open.lease_worker == Some(worker) && open.lease_until.is_some_and(|at| at <= now)
            })
            .await
        });
        released.map(|count| count as u64)
    }

    /// Drops the row of a worker that was silent since then and holds nothing.
    async fn drop_worker(&self, worker: WorkerId, silent_since: Timestamp) -> Result<()> {
        let row = (Uuid::from(worker), micros(silent_since));
        transact!(self.core, Write, |tx| tx.run(sql::WORKER_DELETE, params![row.0, row.1]).await)
            .map(drop)
    }
}

fn delivery_key(row: &mut rows::Fields<'_>) -> Result<DeliveryKey> {
    Ok(DeliveryKey { endpoint_id: row.id()?, message_id: row.id()? })
}

async fn step(tx: &Tx, now: Timestamp) -> Result<Step> {
    if let Some(lane) = tx.one(sql::SWEEP_NEXT, params![], |row| row.id()).await? {
        sweep(tx, lane, now).await?;
        return Ok(Step::Worked { due: false });
    }
    let next = tx
        .one(sql::TASK_NEXT, params![], |row| Ok((row.int()?, row.time()?, rows::task(row)?)))
        .await?;
    match next {
        None => Ok(Step::Idle),
        Some((lane, paced_until, task)) => {
            let deleted = lane == LaneState::Deleted.column();
            let due = advance(tx, task, paced_until, deleted, now).await?;
            Ok(Step::Worked { due })
        }
    }
}

/// A step of holding or cancelling what waits in a lane.
pub(super) async fn sweep(tx: &Tx, lane: EndpointId, now: Timestamp) -> Result<()> {
    let id = Uuid::from(lane);
    let rows = STEP_ROWS as i64;
    let swept = match tx.one(sql::SWEEP_FIND, params![id], |row| row.int()).await? {
        Some(1) => tx.run(sql::SWEEP_HOLD, params![id, rows]).await?,
        Some(2) => {
            let messages = tx.all(sql::SWEEP_CANCEL, params![id, rows], |row| row.id()).await?;
            cancel(tx, lane, &messages, now).await?;
            messages.len() as u64
        }
        _ => return Ok(()),
    };
    if swept < STEP_ROWS as u64 {
        tx.run(sql::SWEEP_DONE, params![id]).await?;
    }
    Ok(())
}

async fn cancel(
    tx: &Tx,
    endpoint_id: EndpointId,
    messages: &[MessageId],
    now: Timestamp,
) -> Result<()> {
    let key = |message: &MessageId| DeliveryKey { endpoint_id, message_id: *message };
    let keys: Vec<DeliveryKey> = messages.iter().map(key).collect();
    let open = tx.open_deliveries(&keys).await?;
    let ended: Vec<_> = open
        .iter()
        .map(|(key, open)| open.ended(*key, rows::CANCELLED, Cause::EndpointDeleted, now))
        .collect();
    tokio::try_join!(biased; tx.remove_deliveries(&keys), tx.store_ended(&ended)).map(drop)
}

/// A step of a replay, whose lane is locked. Says whether something is due now.
async fn advance(
    tx: &Tx,
    mut task: Task,
    mut paced_until: Timestamp,
    deleted: bool,
    now: Timestamp,
) -> Result<bool> {
    let found = if deleted { Vec::new() } else { replayable(tx, &task).await? };
    let spacing = task.rate_per_second.map(|rate| Duration::from_secs(1) / rate.max(1));
    let mut first_due = None;
    let mut moves = [(vec![], vec![]), (vec![], vec![])];
    for Replayable { message, held, gone } in &found {
        task.cursor = Some(*message);
        task.skipped += u64::from(*gone);
        if *gone && !held {
            continue;
        }
        task.replayed += u64::from(!gone);
        let due_at = match spacing {
            None => now,
            Some(spacing) => {
                let due_at = paced_until.max(now);
                paced_until = due_at.after(spacing);
                due_at
            }
        };
        let (messages, due) = &mut moves[usize::from(*held)];
        messages.push(Uuid::from(*message));
        due.push(micros(due_at));
        first_due = first_due.or(Some(due_at));
    }
    for ((messages, due), sql) in moves.into_iter().zip([sql::REPLAY_REOPEN, sql::REPLAY_RELEASE]) {
        if !messages.is_empty() {
            let endpoint = Uuid::from(task.endpoint_id);
            tx.run(sql, params![endpoint, Column(messages), Column(due)]).await?;
        }
    }
    if let Some(due_at) = first_due {
        tx.pull_lanes(&BTreeMap::from([(task.endpoint_id, due_at)])).await?;
    }
    let finished = found.len() < REPLAY_ROWS;
    let row = params![
        Uuid::from(task.id),
        i64::from(finished),
        i64::try_from(task.replayed).unwrap_or(i64::MAX),
        task.cursor.map(Uuid::from),
        micros(paced_until),
        micros(now),
        i64::try_from(task.skipped).unwrap_or(i64::MAX),
    ];
    tx.run(sql::TASK_ADVANCE, row).await?;
    Ok(first_due.is_some_and(|due_at| due_at <= now))
}

/// The next messages of a replay, in the order of their ids.
async fn replayable(tx: &Tx, task: &Task) -> Result<Vec<Replayable>> {
    let first = MessageId::lower_bound(task.since.before(ID_SLACK));
    let after = Uuid::from(task.cursor.unwrap_or(first));
    let before = Uuid::from(MessageId::lower_bound(task.until.after(ID_SLACK)));
    let mut found = Vec::new();
    let kinds = [
        (DeliveryState::DeadLetter, sql::REPLAY_DEAD, false),
        (DeliveryState::Held, sql::REPLAY_HELD, true),
    ];
    for (state, sql, held) in kinds {
        if !task.states.contains(&state) {
            continue;
        }
        let endpoint = Uuid::from(task.endpoint_id);
        let (since, until) = (micros(task.since), micros(task.until));
        let key = params![endpoint, after, before, since, until, REPLAY_ROWS as i64];
        let read = |row: &mut rows::Fields<'_>| {
            Ok(Replayable { message: row.id()?, held, gone: row.flag()? })
        };
        found.extend(tx.all(sql, key, read).await?);
    }
    found.sort_unstable();
    found.truncate(REPLAY_ROWS);
    Ok(found)
}

/// An id is as old as its message but for the time a request takes; the exact bounds are those of
/// `accepted_at`.
const ID_SLACK: Duration = Duration::from_secs(60);

/// A bounded batch of each kind; how many rows went.
async fn prune(tx: &Tx, now: Timestamp) -> Result<[u64; 5]> {
    let rows = STEP_ROWS as i64;
    let oldest = now.before(WINDOWS_KEPT);
    let refused = Uuid::from(MessageId::lower_bound(now.before(KEPT_FOR)));
    let payloads = params![micros(now), PRUNE_PAYLOAD_ROWS as i64];
    Ok([
        tx.run(sql::PRUNE_PAYLOADS, payloads).await?,
        tx.run(sql::PRUNE_IDEMPOTENCY, params![micros(now), rows]).await?,
        tx.run(sql::PRUNE_SKETCHES, params![micros(oldest), rows]).await?,
        tx.run(sql::PRUNE_TALLIES, params![minute_of(oldest), rows]).await?,
        tx.run(sql::PRUNE_ENQUEUED, params![refused, rows]).await?,
    ])
}
