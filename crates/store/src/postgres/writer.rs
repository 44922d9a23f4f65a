//! The task that accepts: it joins what concurrent callers bring into one transaction.
//!
//! A caller is answered only after the commit that holds its message. When a batch fails because of
//! one of them, each goes again in a transaction of its own.

use super::Core;
use super::accept::accept;
use crate::Result;
use crate::error::{Error, Kind};
use crate::monotonic::monotonic;
use crate::outbox::{Acceptance, Accepted};
use posthaste_core::limits::COMMIT_OPERATIONS_MAX;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// Callers that may wait for the task; further ones wait for a place.
const JOBS_WAITING_MAX: usize = 8_192;
/// Payload bytes in one transaction; one message goes whatever its size.
const COMMIT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Under load, commits begin at least this far apart: more of them would only cost processor time.
const COMMIT_SPACING: Duration = Duration::from_millis(1);
/// A batch of so many is load.
const LOAD_JOBS_MIN: usize = 8;

struct Job {
    acceptance: Acceptance,
    reply: oneshot::Sender<Result<Accepted>>,
}

/// Where callers put their messages.
pub(super) struct Writer {
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    pub fn start(core: &Arc<Core>) -> Self {
        let (sender, receiver) = mpsc::channel(JOBS_WAITING_MAX);
        let task = tokio::spawn(serve(Arc::clone(core), receiver));
        Self { jobs: Mutex::new(Some(sender)), task: Mutex::new(Some(task)) }
    }

    /// What became of a message, once that is durable.
    pub async fn accept(&self, acceptance: Acceptance) -> Result<Accepted> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (reply, answer) = oneshot::channel();
        let jobs = jobs.ok_or_else(closed)?;
        jobs.send(Job { acceptance, reply }).await.map_err(|_| closed())?;
        drop(jobs);
        answer.await.map_err(|_| closed())?
    }

    /// Takes no more messages and finishes those it has.
    pub async fn close(&self) {
        drop(self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take());
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // One that panicked has nothing left to finish.
            let _ = task.await;
        }
    }
}

fn closed() -> Error {
    Error::new(Kind::Unavailable, "the store is closed")
}

async fn serve(core: Arc<Core>, mut jobs: mpsc::Receiver<Job>) {
    let mut waiting = Vec::new();
    while jobs.recv_many(&mut waiting, COMMIT_OPERATIONS_MAX).await > 0 {
        while !waiting.is_empty() {
            let began = monotonic();
            let batch = take_batch(&mut waiting);
            let is_load = batch.len() >= LOAD_JOBS_MIN;
            write(&core, batch).await;
            if is_load && waiting.is_empty() {
                let took = monotonic().saturating_duration_since(began);
                if let Some(rest) = COMMIT_SPACING.checked_sub(took) {
                    tokio::time::sleep(rest).await;
                }
            }
        }
    }
}

/// As many of the oldest as fit into one transaction.
fn take_batch(waiting: &mut Vec<Job>) -> Vec<Job> {
    let (mut operations, mut bytes) = (0, 0);
    let fits = waiting.iter().take_while(|job| {
        let first = operations == 0;
        operations += 1 + job.acceptance.deliveries.len();
        bytes += job.acceptance.message.payload.as_ref().map_or(0, bytes::Bytes::len);
        first || (operations <= COMMIT_OPERATIONS_MAX && bytes <= COMMIT_BYTES_MAX)
    });
    let count = fits.count();
    waiting.drain(..count).collect()
}

/// Commits the messages together, or, if one of them is in the way, each on its own.
async fn write(core: &Core, jobs: Vec<Job>) {
    let (batch, replies): (Vec<Acceptance>, Vec<_>) =
        jobs.into_iter().map(|job| (job.acceptance, job.reply)).unzip();
    match commit(core, &batch).await {
        Ok(accepted) => {
            for (reply, accepted) in replies.into_iter().zip(accepted) {
                // A caller that went away needs no answer.
                let _ = reply.send(Ok(accepted));
            }
        }
        Err(error) if batch.len() == 1 || error.kind() == Kind::Unavailable => {
            for reply in replies {
                let _ = reply.send(Err(error.again()));
            }
        }
        Err(_) => {
            for (acceptance, reply) in batch.into_iter().zip(replies) {
                let done = commit(core, &[acceptance]).await;
                let gone = || Error::new(Kind::Internal, "a message was left without an answer");
                let _ = reply.send(done.and_then(|mut accepted| accepted.pop().ok_or_else(gone)));
            }
        }
    }
}

async fn commit(core: &Core, batch: &[Acceptance]) -> Result<Vec<Accepted>> {
    transact!(core, Write, |tx| accept(tx, batch).await)
}
