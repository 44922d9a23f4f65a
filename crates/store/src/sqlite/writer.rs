//! The one thread that writes: it joins what concurrent callers want into one transaction.
//!
//! A job is answered only after the commit that holds it. A job that fails does not touch the
//! others: the transaction is rolled back and each job of the batch runs again in one of its own.
//!
//! **Invariant:** a write transaction begins immediate, so it never has to turn a read into a
//! write; nothing in it waits for anything but the disk.

use super::checkpoint::Log;
use super::db::{Db, failed};
use super::lists::Turn;
use super::no_thread;
use super::worker::Workers;
use crate::Result;
use crate::availability::Availability;
#[cfg(feature = "conformance")]
use crate::error::Reason;
use crate::error::{Error, Kind};
use crate::monotonic::monotonic;
use posthaste_core::endpoint::Endpoint;
use posthaste_core::id::{ApplicationId, EndpointId, WorkerId};
use posthaste_core::limits::COMMIT_OPERATIONS_MAX;
use rusqlite::Connection;
use std::collections::{HashMap, HashSet, VecDeque};
#[cfg(feature = "conformance")]
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};

/// Jobs that may wait for the thread; further callers wait for a place.
const JOBS_WAITING_MAX: usize = 8_192;
/// How long a job that is not urgent may wait for an urgent one to share its commit. A record that
/// waits so long can be lost with the process, and its delivery is then sent once more.
pub(super) const LAZY_WAIT: Duration = Duration::from_millis(8);
/// Under load, commits begin at least this far apart: more of them would only cost processor time.
const COMMIT_SPACING: Duration = Duration::from_millis(1);
/// Under load, this part of the time that the last commit took is waited after its end, so that
/// callers who were just answered get into the next one with what they bring, instead of all but
/// the first missing it by a moment. On a slow disk that nearly doubles the rate.
const COMMIT_GATHERING: u32 = 3;
/// Gathering ends early when as many jobs are back as the last commit had, less this part.
const GATHERED_SLACK: usize = 8;
/// More jobs than this in `LOAD_WINDOW` is load. One client that waits for each answer stays below.
const LOAD_JOBS_MIN: f64 = 40.0;
const LOAD_WINDOW: Duration = Duration::from_millis(10);
/// More callers than this are woken from within the runtime.
const ANSWERED_HERE_MAX: usize = 2;
/// Endpoints kept ready by the writer.
const ENDPOINTS_KEPT_MAX: usize = 4_096;

/// Whether a job makes a commit happen, or rides with the next.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    Now,
    Lazy,
}

/// Where callers put their jobs.
pub(super) struct Writer {
    /// What readers find counts too.
    pub availability: Availability,
    shared: Arc<Shared>,
    slots: Arc<Semaphore>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// So many commits fail, as if the disk were full.
    #[cfg(feature = "conformance")]
    faults: Arc<AtomicU32>,
}

struct Shared {
    inbox: Mutex<Inbox>,
    arrived: Condvar,
}

#[derive(Default)]
struct Inbox {
    jobs: VecDeque<Waiting>,
    /// Operations in `jobs`.
    operations: usize,
    urgent: usize,
    /// So many urgent jobs end the gathering of a batch.
    wanted: usize,
    /// When the oldest of the jobs that are not urgent came, if there is no urgent one.
    lazy_since: Option<Instant>,
    closed: bool,
}

struct Waiting {
    job: Box<dyn Job>,
    urgency: Urgency,
    /// How many rows it writes, roughly.
    operations: usize,
}

/// Something to be done within a transaction. It may run again when the transaction failed.
trait Job: Send {
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<()>;
    fn answer(self: Box<Self>, committed: Result<(), Arc<Error>>);
}

struct Call<F, T> {
    work: F,
    value: Option<T>,
    reply: oneshot::Sender<Result<T>>,
}

impl<F, T> Job for Call<F, T>
where
    F: FnMut(&mut Tx<'_>) -> Result<T> + Send,
    T: Send,
{
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        self.value = Some((self.work)(tx)?);
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), Arc<Error>>) {
        let answer = match (committed, self.value) {
            (Ok(()), Some(value)) => Ok(value),
            (Ok(()), None) => Err(Error::new(Kind::Internal, "a job ended without a value")),
            (Err(error), _) => Err(error.again()),
        };
        // A caller that went away needs no answer.
        let _ = self.reply.send(answer);
    }
}

/// A write transaction, and what its jobs share.
pub(super) struct Tx<'c> {
    pub db: Db<'c>,
    pub memory: &'c mut Memory,
    /// Versions of routes as this transaction has read them; emptied by whoever changes one.
    pub versions: HashMap<ApplicationId, Option<i64>>,
    /// Workers whose row this transaction has seen to.
    pub workers: HashSet<WorkerId>,
}

/// What the writer remembers between transactions. Thrown away when one fails.
pub(super) struct Memory {
    /// Endpoints with the version they are a copy of.
    pub endpoints: HashMap<EndpointId, (i64, Arc<Endpoint>)>,
    pub locks: Arc<Workers>,
}

impl Memory {
    /// Keeps an endpoint; makes room by forgetting all when there are too many.
    pub fn keep(&mut self, version: i64, endpoint: Arc<Endpoint>) {
        if self.endpoints.len() >= ENDPOINTS_KEPT_MAX {
            self.endpoints.clear();
        }
        self.endpoints.insert(endpoint.id, (version, endpoint));
    }
}

impl Writer {
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        mut connection: Connection,
        copying: Connection,
        locks: Arc<Workers>,
    ) -> Result<Self> {
        let shared = Arc::new(Shared { inbox: Mutex::default(), arrived: Condvar::new() });
        let slots = Arc::new(Semaphore::new(JOBS_WAITING_MAX));
        #[cfg(feature = "conformance")]
        let faults = Arc::new(AtomicU32::new(0));
        let thread = Thread {
            log: Log::start(copying, &mut connection)?,
            runtime: Handle::current(),
            connection,
            memory: Memory { endpoints: HashMap::new(), locks },
            shared: Arc::clone(&shared),
            slots: Arc::clone(&slots),
            #[cfg(feature = "conformance")]
            faults: Arc::clone(&faults),
            load: Load::default(),
            turn: Turn::default(),
        };
        let handle = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || thread.serve())
            .map_err(no_thread)?;
        Ok(Self {
            availability: Availability::default(),
            shared,
            slots,
            thread: Mutex::new(Some(handle)),
            #[cfg(feature = "conformance")]
            faults,
        })
    }

    /// Runs `work` in a transaction and returns its value once that is durable.
    pub async fn call<T, F>(&self, urgency: Urgency, operations: usize, work: F) -> Result<T>
    where
        F: FnMut(&mut Tx<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        let slot = self.slots.acquire().await.map_err(|_| closed())?;
        let (reply, answer) = oneshot::channel();
        let job = Box::new(Call { work, value: None, reply });
        self.shared.push(Waiting { job, urgency, operations: operations.max(1) })?;
        // The thread gives the place back when it takes the job.
        slot.forget();
        let answer = answer.await.map_err(|_| closed())?;
        self.availability.note(&answer);
        answer
    }

    /// Takes no more jobs, finishes those it has, and ends the thread. Blocks.
    pub fn close(&self) {
        self.slots.close();
        self.shared.lock().closed = true;
        self.shared.arrived.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A thread that panicked has nothing left to finish.
            let _ = thread.join();
        }
    }

    /// Makes the next `count` commits fail as a full disk would.
    #[cfg(feature = "conformance")]
    pub fn fail_commits(&self, count: u32) {
        self.faults.store(count, Ordering::SeqCst);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}

fn closed() -> Error {
    Error::new(Kind::Unavailable, "the store is closed")
}

impl Shared {
    /// The inbox is consistent at every await-free step, so a poisoned lock is still good.
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, waiting: Waiting) -> Result<()> {
        let mut inbox = self.lock();
        if inbox.closed {
            return Err(closed());
        }
        let was_full = inbox.operations >= COMMIT_OPERATIONS_MAX;
        inbox.operations += waiting.operations;
        let wakes = match waiting.urgency {
            Urgency::Now => {
                inbox.urgent += 1;
                inbox.urgent == 1 || inbox.urgent == inbox.wanted
            }
            Urgency::Lazy => inbox.jobs.is_empty(),
        };
        if waiting.urgency == Urgency::Lazy && inbox.lazy_since.is_none() {
            inbox.lazy_since = Some(monotonic());
        }
        inbox.jobs.push_back(waiting);
        let is_full = inbox.operations >= COMMIT_OPERATIONS_MAX;
        drop(inbox);
        if wakes || (is_full && !was_full) {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Waits until there is a batch worth a commit and takes it; `None` when closed and empty.
    fn take(&self, pace: Option<Pace>) -> Option<Vec<Waiting>> {
        let mut inbox = self.lock();
        inbox.wanted = pace.map_or(1, |pace| pace.wanted);
        loop {
            let now = monotonic();
            let wait_until = if inbox.closed || inbox.operations >= COMMIT_OPERATIONS_MAX {
                None
            } else if inbox.urgent > 0 {
                pace.and_then(|pace| pace.wait_until(now, inbox.urgent))
            } else if let Some(since) = inbox.lazy_since {
                Some(since + LAZY_WAIT).filter(|until| now < *until)
            } else {
                inbox = self.arrived.wait(inbox).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let Some(until) = wait_until else { break };
            let (guard, _) = self
                .arrived
                .wait_timeout(inbox, until.saturating_duration_since(now))
                .unwrap_or_else(PoisonError::into_inner);
            inbox = guard;
        }
        if inbox.jobs.is_empty() {
            return None;
        }
        Some(inbox.take_batch())
    }
}

impl Inbox {
    fn take_batch(&mut self) -> Vec<Waiting> {
        let mut batch = Vec::with_capacity(self.jobs.len().min(COMMIT_OPERATIONS_MAX));
        let mut operations = 0;
        while operations < COMMIT_OPERATIONS_MAX
            && let Some(waiting) = self.jobs.pop_front()
        {
            operations += waiting.operations;
            self.urgent -= usize::from(waiting.urgency == Urgency::Now);
            batch.push(waiting);
        }
        self.operations -= operations;
        // Those left over came at most a batch ago; their wait begins anew.
        self.lazy_since = if self.jobs.is_empty() { None } else { Some(monotonic()) };
        batch
    }
}

/// How long to let jobs gather before the next commit.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Not before this.
    spaced_until: Instant,
    /// Not before this either, unless `wanted` urgent jobs are there.
    gathered_until: Instant,
    wanted: usize,
}

impl Pace {
    fn wait_until(&self, now: Instant, urgent: usize) -> Option<Instant> {
        let until = if urgent >= self.wanted {
            self.spaced_until
        } else {
            self.spaced_until.max(self.gathered_until)
        };
        (now < until).then_some(until)
    }
}

/// How busy it is: jobs of the last moments, fading.
#[derive(Default)]
struct Load {
    jobs: f64,
    at: Option<Instant>,
}

impl Load {
    /// The pace after a commit of `jobs` jobs from `began` to `ended`. `None`: no load, no wait.
    fn pace(&mut self, jobs: usize, urgent: usize, began: Instant, ended: Instant) -> Option<Pace> {
        let passed = self.at.map_or(LOAD_WINDOW, |at| ended.saturating_duration_since(at));
        self.at = Some(ended);
        self.jobs *= (-passed.as_secs_f64() / LOAD_WINDOW.as_secs_f64()).exp();
        self.jobs += f64::from(u32::try_from(jobs).unwrap_or(u32::MAX));
        if self.jobs < LOAD_JOBS_MIN {
            return None;
        }
        let took = ended.saturating_duration_since(began);
        Some(Pace {
            spaced_until: began + COMMIT_SPACING,
            gathered_until: ended + took / COMMIT_GATHERING,
            wanted: (urgent - urgent / GATHERED_SLACK).max(1),
        })
    }
}

struct Thread {
    /// Ends before the connection that it shares the database with.
    log: Log,
    runtime: Handle,
    connection: Connection,
    memory: Memory,
    shared: Arc<Shared>,
    slots: Arc<Semaphore>,
    #[cfg(feature = "conformance")]
    faults: Arc<AtomicU32>,
    load: Load,
    turn: Turn,
}

impl Thread {
    fn serve(mut self) {
        let mut pace = None;
        while let Some(batch) = self.shared.take(pace) {
            self.slots.add_permits(batch.len());
            let urgent = batch.iter().filter(|waiting| waiting.urgency == Urgency::Now).count();
            let operations: usize = batch.iter().map(|waiting| waiting.operations).sum();
            let began = monotonic();
            let jobs: Vec<_> = batch.into_iter().map(|waiting| waiting.job).collect();
            let count = jobs.len();
            self.turn.grew(operations);
            self.write(jobs);
            self.log.committed(&self.connection);
            pace = self.load.pace(count, urgent, began, monotonic());
        }
    }

    /// Commits the jobs together, or, if one of them fails, each on its own.
    fn write(&mut self, mut jobs: Vec<Box<dyn Job>>) {
        match self.transact(&mut jobs) {
            Ok(()) => self.answer(jobs, Ok(())),
            Err(Failure::Commit(error)) => self.answer(jobs, Err(Arc::new(error))),
            Err(Failure::Job(error)) if jobs.len() == 1 => self.answer(jobs, Err(Arc::new(error))),
            Err(Failure::Job(_)) => {
                for job in jobs {
                    self.write(vec![job]);
                }
            }
        }
    }

    /// Wakes those who wait. Many are woken from within the runtime, where that costs a push to a
    /// list instead of a call to the kernel each.
    fn answer(&self, jobs: Vec<Box<dyn Job>>, committed: Result<(), Arc<Error>>) {
        let is_few = jobs.len() <= ANSWERED_HERE_MAX;
        let wake = move || jobs.into_iter().for_each(|job| job.answer(committed.clone()));
        if is_few {
            wake();
        } else {
            self.runtime.spawn(async move { wake() });
        }
    }

    fn transact(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<(), Failure> {
        self.connection.execute_batch("BEGIN IMMEDIATE").map_err(failed)?;
        let done = self.run(jobs);
        if done.is_err() {
            // Nothing to roll back is no error here: SQLite does so itself on some failures.
            if !self.connection.is_autocommit() {
                let _ = self.connection.execute_batch("ROLLBACK");
            }
            self.memory.endpoints.clear();
        }
        done
    }

    fn run(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<(), Failure> {
        let mut tx = Tx {
            db: Db::new(&self.connection),
            memory: &mut self.memory,
            versions: HashMap::new(),
            workers: HashSet::new(),
        };
        for job in jobs {
            job.run(&mut tx).map_err(Failure::Job)?;
        }
        self.turn.take(&tx.db)?;
        drop(tx);
        #[cfg(feature = "conformance")]
        self.fault()?;
        self.connection.execute_batch("COMMIT").map_err(failed)?;
        Ok(())
    }
}

#[cfg(feature = "conformance")]
impl Thread {
    fn fault(&self) -> Result<()> {
        let left = |left: u32| left.checked_sub(1);
        match self.faults.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left) {
            Ok(_) => Err(Error::unavailable(Reason::DiskFull, "the disk is full")),
            Err(_) => Ok(()),
        }
    }
}

impl Drop for Thread {
    /// Also when the thread panics: whoever waits, and whoever comes, is told.
    fn drop(&mut self) {
        self.slots.close();
        let mut inbox = self.shared.lock();
        inbox.closed = true;
        inbox.jobs.clear();
    }
}

/// Whose failure it was: one job's, or everybody's.
enum Failure {
    Job(Error),
    Commit(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Commit(error)
    }
}
