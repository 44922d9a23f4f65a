//! Connections: few, kept, and made anew when they break.
//!
//! **Invariant:** there are never more than `connections_max`, idle or not; whoever wants one waits
//! for a bounded time.

use super::PostgresOptions;
use super::db::{Mode, Tx};
use super::open::Target;
use crate::Result;
use crate::availability::Availability;
use crate::error::{Error, Kind, Reason};
use crate::monotonic::monotonic;
use std::hash::{BuildHasher, RandomState};
#[cfg(feature = "conformance")]
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// After a failed attempt, nobody tries again for so long; doubled with every further failure.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// How much longer than a statement may take we wait for its answer.
const ANSWER_SLACK: Duration = Duration::from_secs(2);

/// Keeps the planner on ordered walks of indexes.
const BY_INDEX: &str = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; \
    SET LOCAL enable_sort = off; SET LOCAL enable_hashjoin = off; \
    SET LOCAL enable_mergejoin = off; SET LOCAL jit = off";

/// An open connection.
pub(super) struct Connection {
    pub client: tokio_postgres::Client,
}

pub(super) struct Pool {
    target: Target,
    options: PostgresOptions,
    pub availability: Availability,
    places: Arc<Semaphore>,
    idle: Mutex<Vec<Connection>>,
    trouble: Mutex<Option<Trouble>>,
    begin: [String; 4],
    /// So many commits fail, as if the disk were full.
    #[cfg(feature = "conformance")]
    faults: AtomicU32,
}

/// Connecting failed.
struct Trouble {
    failures: u32,
    retry_at: Instant,
    error: Error,
}

/// The right to one connection; given back when it is dropped.
pub(super) struct Place {
    pool: Arc<Pool>,
    _permit: OwnedSemaphorePermit,
}

impl Pool {
    pub fn new(target: Target, options: PostgresOptions) -> Arc<Self> {
        let places = options.connections_max.max(1);
        let millis = options.statement_timeout.as_millis();
        let limits = format!("SET LOCAL statement_timeout = {millis}");
        // Nobody waits for a row longer than half of that: what holds it is stuck.
        let locks = format!("SET LOCAL lock_timeout = {}", millis / 2);
        let read = format!("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {limits}");
        let write = format!("BEGIN ISOLATION LEVEL READ COMMITTED; {limits}; {locks}");
        let begin = [
            read.clone(),
            format!("{read}; {BY_INDEX}"),
            write.clone(),
            format!("{write}; {BY_INDEX}"),
        ];
        Arc::new(Self {
            target,
            options,
            availability: Availability::default(),
            places: Arc::new(Semaphore::new(places)),
            idle: Mutex::default(),
            trouble: Mutex::default(),
            begin,
            #[cfg(feature = "conformance")]
            faults: AtomicU32::new(0),
        })
    }

    /// A transaction that has begun.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached or all connections stay busy.
    pub async fn begin(self: &Arc<Self>, mode: Mode) -> Result<Tx> {
        // Each idle connection may turn out to be dead: the server was restarted meanwhile.
        for _ in 0..self.options.connections_max {
            let tx = self.transaction().await?;
            match tx.begin(mode).await {
                Ok(()) => return Ok(tx),
                Err(error) if tx.is_silent() => return Err(error),
                Err(_) if tx.is_broken() => {}
                Err(error) => return Err(error),
            }
        }
        let tx = self.transaction().await?;
        tx.begin(mode).await?;
        Ok(tx)
    }

    /// A transaction that has not begun yet, on a connection that may be dead.
    pub async fn transaction(self: &Arc<Self>) -> Result<Tx> {
        let place = self.place().await?;
        let idle = self.idle().pop();
        let connection = match idle {
            Some(connection) if !connection.client.is_closed() => connection,
            _ => self.connect().await?,
        };
        Ok(Tx::new(connection, place))
    }

    async fn place(self: &Arc<Self>) -> Result<Place> {
        let permit = Arc::clone(&self.places).acquire_owned();
        match tokio::time::timeout(self.options.acquire_timeout, permit).await {
            Ok(Ok(permit)) => Ok(Place { pool: Arc::clone(self), _permit: permit }),
            Ok(Err(_)) => Err(Error::new(Kind::Unavailable, "the store is closed")),
            Err(_) => {
                let text = "all connections to the database are busy";
                Err(Error::unavailable(Reason::Busy, text))
            }
        }
    }

    async fn connect(&self) -> Result<Connection> {
        if let Some(trouble) = &*self.trouble()
            && monotonic() < trouble.retry_at
        {
            return Err(trouble.error.again());
        }
        match self.target.connect().await {
            Ok(connection) => {
                *self.trouble() = None;
                Ok(connection)
            }
            Err(error) => {
                // Connections that are idle now lead to the same place; where there are no more to
                // be had, they are all there is.
                if error.reason() != Some(Reason::Connections) {
                    self.idle().clear();
                }
                let mut trouble = self.trouble();
                let failures = trouble.as_ref().map_or(0, |trouble| trouble.failures) + 1;
                let again = error.again();
                let retry_at = monotonic() + wait(failures);
                *trouble = Some(Trouble { failures, retry_at, error });
                Err(again)
            }
        }
    }

    /// Lets nobody in any more and closes what is idle; what is in use closes when it ends.
    pub fn close(&self) {
        self.places.close();
        self.idle().clear();
    }

    #[cfg(feature = "conformance")]
    pub fn fail_commits(&self, count: u32) {
        self.faults.store(count, Ordering::SeqCst);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trouble(&self) -> MutexGuard<'_, Option<Trouble>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// How long the server may take to begin; that is no work.
    pub fn begin_timeout(&self) -> Duration {
        self.pool.options.acquire_timeout.max(ANSWER_SLACK)
    }

    /// How long it may take for a statement: what it was told, and the way there and back.
    pub fn answer_timeout(&self) -> Duration {
        self.pool.options.statement_timeout + ANSWER_SLACK
    }

    /// The server does not answer, or is the wrong one: so do idle connections lead nowhere.
    pub fn lead_nowhere(&self) {
        self.pool.idle().clear();
    }

    pub fn begin_sql(&self, mode: Mode) -> &str {
        &self.pool.begin[mode as usize]
    }

    /// Keeps a connection that is good and in no transaction.
    pub fn give_back(&self, connection: Connection) {
        if !self.pool.places.is_closed() {
            self.pool.idle().push(connection);
        }
    }

    #[cfg(feature = "conformance")]
    pub fn fault(&self) -> Result<()> {
        let left = |left: u32| left.checked_sub(1);
        match self.pool.faults.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left) {
            Ok(_) => Err(Error::unavailable(Reason::DiskFull, "the disk is full")),
            Err(_) => Ok(()),
        }
    }
}

/// Between half and all of the doubled wait, so that processes do not come back in step.
pub(super) fn wait(failures: u32) -> Duration {
    let full = RETRY_FIRST.saturating_mul(1 << failures.min(10).saturating_sub(1)).min(RETRY_MAX);
    let roll = u32::try_from(RandomState::new().hash_one(failures) % 1_000).unwrap_or(0);
    full / 2 + full / 2 * roll / 1_000
}
