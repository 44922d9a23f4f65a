//! What keeps the store well: workers and their leases, sweeps, tasks, retention.

use crate::Result;
use crate::diagnosis::Diagnosis;
use crate::error::Reason;
use async_trait::async_trait;
use posthaste_core::delivery::DeliveryState;
use posthaste_core::id::{ApplicationId, EndpointId, MessageId, TaskId, WorkerId};
use posthaste_core::time::Timestamp;

/// What a worker does beside its deliveries.
#[async_trait]
pub trait Upkeep: Send + Sync {
    /// Says that the worker lives.
    async fn heartbeat(&self, worker: WorkerId, now: Timestamp) -> Result<()>;

    /// Finds workers that are gone (silent since `silent_since`, or known to be dead) and leases
    /// that ran out, and makes their deliveries due again; attempts stay counted, so one that kills
    /// its worker runs out of attempts. Returns how many deliveries came back.
    async fn recover(&self, now: Timestamp, silent_since: Timestamp) -> Result<u64>;

    /// The worker leaves in order: whatever it still has under lease is given back (as
    /// `Outbox::give_back` does) and its row goes.
    async fn retire(&self, worker: WorkerId, now: Timestamp) -> Result<()>;

    /// One bounded step of work that is too large for one transaction: holding the backlog of a
    /// disabled endpoint, cancelling that of a deleted one, advancing tasks.
    async fn step(&self, now: Timestamp) -> Result<Step>;

    /// Remembers a task; `step` advances it, also after a restart.
    async fn start_task(&self, task: Task) -> Result<()>;

    /// Whoever asks for somebody else must look at whose application it is.
    async fn task(&self, id: TaskId) -> Result<Option<Task>>;

    /// Deletes, in bounded batches, payloads past their retention, expired idempotency keys, sketch
    /// windows older than 25 h, counts older than 25 h. Returns how many rows went.
    async fn prune(&self, now: Timestamp) -> Result<u64>;

    /// Deletes, in bounded steps, messages accepted before `accepted_before` with their attempts
    /// and ended deliveries, so far as their payload is gone and nothing of them is open. May leave
    /// some for later. Returns how many messages went.
    async fn forget(&self, accepted_before: Timestamp) -> Result<u64>;

    /// Tells other processes that something may be due. It costs the caller nothing: many calls
    /// become few words. A hint, which may be lost.
    fn nudge(&self);

    /// Returns when another process nudged since the last call, where there is a way to hear of it;
    /// it may also return for nothing. For one task of a process. May be dropped at any time.
    async fn nudged(&self);

    /// Accepts messages that applications enqueued in the database itself, in transactions of
    /// their own, where there is a way to: a bounded number, the oldest first, each once.
    async fn take_in(&self, now: Timestamp) -> Result<TakenIn>;

    /// Returns when something may have been enqueued since the last call, as `nudged` does.
    async fn enqueued(&self);

    /// Whether the store can be read and written.
    async fn check(&self) -> Result<()>;

    /// Why the store could not be used a moment ago, as those who used it found; `None`: it could,
    /// or nobody has used it lately. Asks nobody.
    fn trouble(&self) -> Option<Reason>;

    /// What will go wrong unless somebody sees to it. `now` must have been read just before. Clocks
    /// are compared for people only; nothing is decided by it.
    async fn diagnose(&self, now: Timestamp) -> Result<Diagnosis>;

    /// Flushes and closes; nothing may be called after it.
    async fn close(&self) -> Result<()>;
}

/// What a step found to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Idle,
    /// Something was done; `due`: deliveries became due.
    Worked {
        due: bool,
    },
}

/// What was taken in; nothing at all: there is no more for now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenIn {
    /// Messages accepted.
    pub accepted: usize,
    /// Deliveries became due.
    pub due: bool,
    /// They stay in the database for people to see.
    pub refused: Vec<Refused>,
}

/// A message that was enqueued and cannot be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    pub message_id: MessageId,
    pub why: &'static str,
}

/// Replays deliveries of one endpoint: those given up or held, of messages accepted in a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub id: TaskId,
    /// The endpoint's; not kept with the task.
    pub application_id: ApplicationId,
    pub endpoint_id: EndpointId,
    /// Inclusive.
    pub since: Timestamp,
    /// Exclusive.
    pub until: Timestamp,
    /// Which states are replayed: `DeadLetter`, `Held` or both.
    pub states: Vec<DeliveryState>,
    /// At most so many deliveries a second become due; `None`: no pace but the lane's own.
    pub rate_per_second: Option<u32>,
    pub status: TaskStatus,
    pub replayed: u64,
    /// Those whose payload was gone: a dead letter stays one, and what was held becomes one.
    pub skipped: u64,
    /// The last message looked at.
    pub cursor: Option<MessageId>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// How far a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskStatus {
    Running,
    Finished,
}

/// A delivery that a replay comes to. What is held and has no payload is released like the rest,
/// so that it ends: a claim gives it up with that cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Replayable {
    pub message: MessageId,
    pub held: bool,
    /// Its payload is gone.
    pub gone: bool,
}
