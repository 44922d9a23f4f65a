//! `Upkeep`: workers and their leases, sweeps, tasks, retention. Everything in bounded steps.

use super::writer::{Tx, Urgency};
use super::{SqliteStore, lists};
use crate::diagnosis::Diagnosis;
use crate::error::Reason;
use crate::lanes::{LaneState, minute_of};
use crate::rows::{self, Fields};
use crate::upkeep::{Replayable, Step, TakenIn, Task, TaskStatus, Upkeep};
use crate::{Error, Kind, Result};
use async_trait::async_trait;
use posthaste_core::delivery::{Cause, DeliveryKey, DeliveryState};
use posthaste_core::id::{ApplicationId, EndpointId, MessageId, TaskId, WorkerId};
use posthaste_core::time::Timestamp;
use rusqlite::params;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub(super) mod sql {
    crate::queries::queries! { "../../sql/sqlite/upkeep.sql":
        WORKER_SEE, WORKER_HEARTBEAT, WORKERS, WORKER_DELETE, LEASES_OF, LEASES_EXPIRED,
        SWEEP_NEXT, SWEEP_FIND, SWEEP_HOLD, SWEEP_CANCEL, SWEEP_DONE, TASK_INSERT, TASK_FIND,
        TASK_NEXT, REPLAY_DEAD, REPLAY_HELD, REPLAY_REOPEN, REPLAY_RELEASE, TASK_ADVANCE,
        PRUNE_PAYLOADS, PRUNE_EXPIRIES, PRUNE_IDEMPOTENCY, PRUNE_SKETCHES, PRUNE_TALLIES, CHECK,
        CHECK_WRITE, FORGET_NEXT, FORGET_ATTEMPT_LIST, FORGET_ATTEMPTS, FORGET_MESSAGE_ATTEMPTS,
        FORGET_FIND_ENDED, FORGET_ENDED, FORGET_ENDED_LIST, FORGET_MESSAGE_LIST, FORGET_MESSAGE,
        FORGET_DONE,
    }
}

/// Workers of one database.
const WORKERS_MAX: usize = 1_024;
/// Rows of one step.
const STEP_ROWS: usize = 1_000;
/// Deliveries replayed in one step.
const REPLAY_ROWS: usize = 500;
/// Payloads are large; fewer of them go at once.
const PRUNE_PAYLOAD_ROWS: usize = 500;
/// Messages looked at, and forgotten, at once. Each is looked for at every endpoint of its
/// application.
const FORGET_ROWS: usize = 50;
/// After so many steps that found nothing to forget, the rest waits for the next call: what is old
/// but must stay, because its payload is kept for longer, is not walked over again and again.
const FORGET_BARREN_MAX: u32 = 20;
/// Windows and counts are read for 24 h; an hour more is kept.
const WINDOWS_KEPT: Duration = Duration::from_secs(25 * 3_600);

#[async_trait]
impl Upkeep for SqliteStore {
    async fn heartbeat(&self, worker: WorkerId, now: Timestamp) -> Result<()> {
        let beat = move |tx: &mut Tx<'_>| {
            let locks = tx.memory.locks.hold(worker);
            let row = params![worker.as_bytes(), now.as_micros(), locks];
            tx.db.run(sql::WORKER_HEARTBEAT, row).map(drop)
        };
        self.writer.call(Urgency::Lazy, 1, beat).await
    }

    async fn recover(&self, now: Timestamp, silent_since: Timestamp) -> Result<u64> {
        self.recover_dead(now, silent_since).await
    }

    async fn retire(&self, worker: WorkerId, now: Timestamp) -> Result<()> {
        self.release_all(worker, now, false).await?;
        self.workers.forget(worker);
        Ok(())
    }

    async fn step(&self, now: Timestamp) -> Result<Step> {
        self.writer.call(Urgency::Now, STEP_ROWS, move |tx| step(tx, now)).await
    }

    async fn start_task(&self, task: Task) -> Result<()> {
        let insert = move |tx: &mut Tx<'_>| {
            let row = params![
                task.id.as_bytes(),
                task.endpoint_id.as_bytes(),
                task.since.as_micros(),
                task.until.as_micros(),
                rows::task_states(&task.states),
                task.rate_per_second,
                i64::from(task.status == TaskStatus::Finished),
                i64::try_from(task.replayed).unwrap_or(i64::MAX),
                task.cursor.as_ref().map(|cursor| cursor.as_bytes()),
                task.created_at.as_micros(),
                task.updated_at.as_micros(),
                i64::try_from(task.skipped).unwrap_or(i64::MAX),
            ];
            tx.db.run(sql::TASK_INSERT, row).map(drop)
        };
        self.writer.call(Urgency::Now, 1, insert).await
    }

    async fn task(&self, id: TaskId) -> Result<Option<Task>> {
        self.read(move |db| db.one(sql::TASK_FIND, [id.as_bytes()], rows::task)).await
    }

    async fn prune(&self, now: Timestamp) -> Result<u64> {
        self.complete_lists().await?;
        let mut pruned = 0;
        loop {
            let rows = self.writer.call(Urgency::Lazy, STEP_ROWS, move |tx| prune(tx, now)).await?;
            pruned += rows.iter().map(|rows| *rows as u64).sum::<u64>();
            let full = [PRUNE_PAYLOAD_ROWS, STEP_ROWS, STEP_ROWS, STEP_ROWS];
            if rows.iter().zip(full).all(|(rows, full)| *rows < full) {
                return Ok(pruned);
            }
        }
    }

    async fn forget(&self, accepted_before: Timestamp) -> Result<u64> {
        // What may go is mostly what came first; behind what must stay, a part at a time is seen.
        let first = self.forget_from(0, accepted_before).await?;
        let Some(stopped) = first.next else { return Ok(first.forgotten) };
        let after = self.forget_after.load(Ordering::Relaxed).max(stopped);
        let second = self.forget_from(after, accepted_before).await?;
        self.forget_after.store(second.next.unwrap_or(0), Ordering::Relaxed);
        Ok(first.forgotten + second.forgotten)
    }

    /// Processes on one file are few, and look for themselves.
    fn nudge(&self) {}

    async fn nudged(&self) {
        std::future::pending().await
    }

    /// Nobody but us writes to the file.
    async fn take_in(&self, _: Timestamp) -> Result<TakenIn> {
        Ok(TakenIn::default())
    }

    async fn enqueued(&self) {
        std::future::pending().await
    }

    async fn check(&self) -> Result<()> {
        self.read(|db| db.get(sql::CHECK, [], |row| row.int()).map(drop)).await?;
        let write = |tx: &mut Tx<'_>| tx.db.run(sql::CHECK_WRITE, []).map(drop);
        self.writer.call(Urgency::Now, 1, write).await
    }

    fn trouble(&self) -> Option<Reason> {
        self.writer.availability.reason()
    }

    async fn diagnose(&self, _: Timestamp) -> Result<Diagnosis> {
        // A file has no clock, no snapshots of others and no transaction ids that run out.
        Ok(Diagnosis::default())
    }

    async fn close(&self) -> Result<()> {
        self.readers.places.close();
        self.readers.idle().clear();
        let writer = Arc::clone(&self.writer);
        tokio::task::spawn_blocking(move || writer.close()).await.map_err(super::broken)
    }
}

impl SqliteStore {
    /// Makes due again what dead or silent workers held, and what live ones held for too long.
    ///
    /// Whether a lease is in force is looked at in the transaction that releases it, so a record
    /// that comes between is never undone.
    pub(super) async fn recover_dead(
        &self,
        now: Timestamp,
        silent_since: Timestamp,
    ) -> Result<u64> {
        let workers = self.writer.call(Urgency::Lazy, 1, |tx| {
            tx.db.all(sql::WORKERS, [WORKERS_MAX as i64], |row| {
                Ok((row.id::<WorkerId>()?, row.time()?, row.flag()?))
            })
        });
        let mut released = 0;
        for (worker, heartbeat_at, locks) in workers.await? {
            let dead = locks && self.workers.is_dead(worker);
            if dead || heartbeat_at < silent_since {
                released += self.release_all(worker, now, true).await?;
                if dead {
                    self.workers.forget(worker);
                }
            } else {
                released += self.release_expired(worker, now).await?;
            }
        }
        Ok(released)
    }

    /// Forgets what comes after a `seq`, until there is nothing old left or too much must stay.
    async fn forget_from(&self, seq: i64, accepted_before: Timestamp) -> Result<Forgotten> {
        let mut so_far = Forgotten { forgotten: 0, next: Some(seq) };
        let mut barren = 0;
        while let Some(after) = so_far.next
            && barren < FORGET_BARREN_MAX
        {
            let work = move |tx: &mut Tx<'_>| forget(tx, after, accepted_before);
            let step = self.writer.call(Urgency::Lazy, FORGET_ROWS, work).await?;
            barren = if step.forgotten == 0 { barren + 1 } else { 0 };
            so_far = Forgotten { forgotten: so_far.forgotten + step.forgotten, ..step };
        }
        Ok(so_far)
    }

    /// Releases all leases of a worker, then drops its row.
    async fn release_all(&self, worker: WorkerId, now: Timestamp, counted: bool) -> Result<u64> {
        let mut released = 0;
        loop {
            let work = move |tx: &mut Tx<'_>| {
                let key = params![worker.as_bytes(), STEP_ROWS as i64];
                let count = release_found(tx, sql::LEASES_OF, key, now, counted)?;
                if count < STEP_ROWS {
                    tx.db.run(sql::WORKER_DELETE, [worker.as_bytes()])?;
                    tx.workers.remove(&worker);
                }
                Ok(count)
            };
            let count = self.writer.call(Urgency::Now, STEP_ROWS, work).await?;
            released += count as u64;
            if count < STEP_ROWS {
                return Ok(released);
            }
        }
    }

    async fn release_expired(&self, worker: WorkerId, now: Timestamp) -> Result<u64> {
        let work = move |tx: &mut Tx<'_>| {
            let key = params![worker.as_bytes(), now.as_micros(), STEP_ROWS as i64];
            release_found(tx, sql::LEASES_EXPIRED, key, now, true)
        };
        self.writer.call(Urgency::Lazy, STEP_ROWS, work).await.map(|count| count as u64)
    }
}

fn release_found(
    tx: &mut Tx<'_>,
    find: &'static str,
    key: impl rusqlite::Params,
    now: Timestamp,
    counted: bool,
) -> Result<usize> {
    let keys = tx
        .db
        .all(find, key, |row| Ok(DeliveryKey { endpoint_id: row.id()?, message_id: row.id()? }))?;
    for key in &keys {
        if let Some(open) = tx.open_delivery(*key)? {
            tx.release(*key, &open, now, counted)?;
        }
    }
    Ok(keys.len())
}

fn step(tx: &mut Tx<'_>, now: Timestamp) -> Result<Step> {
    if let Some(lane) = tx.db.one(sql::SWEEP_NEXT, [], |row| row.id())? {
        sweep(tx, lane, now)?;
        return Ok(Step::Worked { due: false });
    }
    let next =
        tx.db.one(sql::TASK_NEXT, [], |row| Ok((row.int()?, row.time()?, rows::task(row)?)))?;
    match next {
        None => Ok(Step::Idle),
        Some((lane, paced_until, task)) => {
            let deleted = lane == LaneState::Deleted.column();
            advance(tx, task, paced_until, deleted, now).map(|due| Step::Worked { due })
        }
    }
}

/// A step of holding or cancelling what waits in a lane.
pub(super) fn sweep(tx: &mut Tx<'_>, lane: EndpointId, now: Timestamp) -> Result<()> {
    let id = lane.as_bytes();
    let rows = STEP_ROWS as i64;
    let swept = match tx.db.one(sql::SWEEP_FIND, [id], |row| row.int())? {
        Some(1) => tx.db.run(sql::SWEEP_HOLD, params![id, rows])?,
        Some(2) => {
            let messages: Vec<MessageId> =
                tx.db.all(sql::SWEEP_CANCEL, params![id, rows], |row| row.id())?;
            for message_id in &messages {
                cancel(tx, DeliveryKey { endpoint_id: lane, message_id: *message_id }, now)?;
            }
            messages.len()
        }
        _ => return Ok(()),
    };
    if swept < STEP_ROWS {
        tx.db.run(sql::SWEEP_DONE, [id])?;
    }
    Ok(())
}

fn cancel(tx: &Tx<'_>, key: DeliveryKey, now: Timestamp) -> Result<()> {
    let open = tx.open_delivery(key)?;
    let open = open.ok_or_else(|| Error::new(Kind::Internal, "a delivery that was just read"))?;
    tx.end(&open.ended(key, rows::CANCELLED, Cause::EndpointDeleted, now))
}

/// A step of a replay. Says whether something is due now.
fn advance(
    tx: &mut Tx<'_>,
    mut task: Task,
    mut paced_until: Timestamp,
    deleted: bool,
    now: Timestamp,
) -> Result<bool> {
    lists::complete(&tx.db)?;
    let found = if deleted { Vec::new() } else { replayable(tx, &task)? };
    let spacing = task.rate_per_second.map(|rate| Duration::from_secs(1) / rate.max(1));
    let mut first_due = None;
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
        let sql = if *held { sql::REPLAY_RELEASE } else { sql::REPLAY_REOPEN };
        let row = params![task.endpoint_id.as_bytes(), message.as_bytes(), due_at.as_micros()];
        tx.db.run(sql, row)?;
        first_due = first_due.or(Some(due_at));
    }
    if let Some(due_at) = first_due {
        tx.pull_lane(task.endpoint_id, due_at)?;
    }
    let finished = found.len() < REPLAY_ROWS;
    tx.db.run(
        sql::TASK_ADVANCE,
        params![
            task.id.as_bytes(),
            finished,
            i64::try_from(task.replayed).unwrap_or(i64::MAX),
            task.cursor.as_ref().map(|cursor| cursor.as_bytes()),
            paced_until.as_micros(),
            now.as_micros(),
            i64::try_from(task.skipped).unwrap_or(i64::MAX),
        ],
    )?;
    Ok(first_due.is_some_and(|due_at| due_at <= now))
}

/// The next messages of a replay, in the order of their ids.
fn replayable(tx: &Tx<'_>, task: &Task) -> Result<Vec<Replayable>> {
    let first = MessageId::lower_bound(task.since.before(ID_SLACK));
    let after = task.cursor.unwrap_or(first);
    let before = MessageId::lower_bound(task.until.after(ID_SLACK));
    let mut found = Vec::new();
    let kinds = [
        (DeliveryState::DeadLetter, sql::REPLAY_DEAD, false),
        (DeliveryState::Held, sql::REPLAY_HELD, true),
    ];
    for (state, sql, held) in kinds {
        if !task.states.contains(&state) {
            continue;
        }
        let key = params![
            task.endpoint_id.as_bytes(),
            after.as_bytes(),
            before.as_bytes(),
            task.since.as_micros(),
            task.until.as_micros(),
            REPLAY_ROWS as i64,
        ];
        found.extend(
            tx.db.all(sql, key, |row| {
                Ok(Replayable { message: row.id()?, held, gone: row.flag()? })
            })?,
        );
    }
    found.sort_unstable();
    found.truncate(REPLAY_ROWS);
    Ok(found)
}

/// An id is as old as its message but for the time a request takes; the exact bounds are those of
/// `accepted_at`.
const ID_SLACK: Duration = Duration::from_secs(60);

struct Forgotten {
    forgotten: u64,
    /// After which `seq` to go on; `None`: there is nothing old left.
    next: Option<i64>,
}

/// Looks at the messages after a `seq` and forgets those that may go.
fn forget(tx: &mut Tx<'_>, after: i64, accepted_before: Timestamp) -> Result<Forgotten> {
    let key = params![after, accepted_before.as_micros(), FORGET_ROWS as i64];
    let found = tx.db.all(sql::FORGET_NEXT, key, Old::read)?;
    let mut forgotten = 0;
    for old in found.iter().filter(|old| old.may_go) {
        if forgotten == 0 {
            lists::complete(&tx.db)?;
        }
        forget_one(tx, old)?;
        forgotten += 1;
    }
    if forgotten > 0 {
        tx.db.run(sql::FORGET_DONE, [])?;
    }
    // Messages are accepted nearly in the order of their numbers: the first young one ends it.
    let all_old = found.iter().all(|old| old.created_at < accepted_before);
    let next = found.last().filter(|_| all_old && found.len() == FORGET_ROWS).map(|old| old.seq);
    Ok(Forgotten { forgotten, next })
}

/// A message that may be old enough.
struct Old {
    seq: i64,
    id: MessageId,
    application_id: ApplicationId,
    created_at: Timestamp,
    may_go: bool,
}

impl Old {
    fn read(row: &mut Fields<'_>) -> Result<Self> {
        Ok(Self {
            seq: row.int()?,
            id: row.id()?,
            application_id: row.id()?,
            created_at: row.time()?,
            may_go: row.flag()?,
        })
    }
}

/// What is found through a list goes before the list.
fn forget_one(tx: &Tx<'_>, old: &Old) -> Result<()> {
    let (message, application) = (old.id.as_bytes(), old.application_id.as_bytes());
    tx.db.run(sql::FORGET_ATTEMPT_LIST, [message])?;
    tx.db.run(sql::FORGET_ATTEMPTS, [message])?;
    tx.db.run(sql::FORGET_MESSAGE_ATTEMPTS, [message])?;
    let ended = tx.db.all(sql::FORGET_FIND_ENDED, [message, application], |row| {
        Ok((row.int()?, row.id::<EndpointId>()?))
    })?;
    for (seq, endpoint) in ended {
        tx.db.run(sql::FORGET_ENDED, [seq])?;
        tx.db.run(sql::FORGET_ENDED_LIST, [endpoint.as_bytes(), message])?;
    }
    tx.db.run(sql::FORGET_MESSAGE_LIST, [message, application])?;
    tx.db.run(sql::FORGET_MESSAGE, [old.seq])?;
    Ok(())
}

/// A bounded batch of each kind; how many rows went.
fn prune(tx: &mut Tx<'_>, now: Timestamp) -> Result<[usize; 4]> {
    let rows = STEP_ROWS as i64;
    let oldest = now.before(WINDOWS_KEPT);
    let minute = minute_of(oldest);
    lists::complete(&tx.db)?;
    let expired = params![now.as_micros(), PRUNE_PAYLOAD_ROWS as i64];
    let payloads = tx.db.run(sql::PRUNE_PAYLOADS, expired)?;
    tx.db.run(sql::PRUNE_EXPIRIES, expired)?;
    Ok([
        payloads,
        tx.db.run(sql::PRUNE_IDEMPOTENCY, params![now.as_micros(), rows])?,
        tx.db.run(sql::PRUNE_SKETCHES, params![oldest.as_micros(), rows])?,
        tx.db.run(sql::PRUNE_TALLIES, params![minute, rows])?,
    ])
}
