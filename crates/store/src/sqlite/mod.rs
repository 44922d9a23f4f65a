//! The store on SQLite: one writer thread with group commit, a few readers, one file.
//!
//! Several processes may use one file: writers take turns, and what one process keeps in memory is
//! either checked where it matters (routes, in `accept`) or a second old at most (applications).
//!
//! **Invariant:** all writing goes through the writer's thread; a reader's connection is read-only.

mod catalog;
mod changes;
mod checkpoint;
mod claim;
mod db;
mod history;
mod lanes;
mod lists;
mod open;
mod outbox;
mod pick;
mod record;
pub(crate) mod transfer;
mod upkeep;
mod worker;
mod writer;

#[cfg(test)]
mod plans_tests;

use crate::Result;
use crate::cache::Cache;
use crate::error::{Error, Kind};
use db::Db;
use open::Opened;
use posthaste_core::time::Timestamp;
use rusqlite::Connection;
use std::path::Path;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use worker::Workers;
use writer::Writer;

/// Connections that read at the same time.
const READERS_MAX: usize = 4;

/// How the store uses its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqliteOptions {
    /// How long to wait for another process that holds the database.
    pub busy_timeout: Duration,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self { busy_timeout: Duration::from_secs(5) }
    }
}

/// An open database.
pub struct SqliteStore {
    writer: Arc<Writer>,
    readers: Arc<Readers>,
    cache: Cache,
    workers: Arc<Workers>,
    /// The `seq` after which the next call looks for what may be forgotten.
    forget_after: AtomicI64,
}

struct Readers {
    places: Arc<Semaphore>,
    /// At most as many as there are places.
    idle: Mutex<Vec<Connection>>,
}

impl SqliteStore {
    /// Opens the database at `path`, makes it and its folder if they are not there, brings its
    /// schema up to date, and makes deliveries due again that a process of this machine held when
    /// it died.
    ///
    /// Runs for as long as that takes on a blocking thread; needs a Tokio runtime.
    ///
    /// # Errors
    /// `Unusable` with the way out when the folder cannot be written, the file is something else,
    /// comes from a newer version or stays locked.
    pub async fn open(path: &Path, options: SqliteOptions, now: Timestamp) -> Result<Self> {
        let path = path.to_owned();
        let database = path.clone();
        let opened = tokio::task::spawn_blocking(move || open::open(&path, options, READERS_MAX));
        let Opened { writing, copying, reading } = opened.await.map_err(broken)??;
        let workers = Arc::new(Workers::new(&database));
        let store = Self {
            writer: Arc::new(Writer::start(writing, copying, Arc::clone(&workers))?),
            readers: Arc::new(Readers {
                places: Arc::new(Semaphore::new(reading.len())),
                idle: Mutex::new(reading),
            }),
            cache: Cache::default(),
            workers,
            forget_after: AtomicI64::new(0),
        };
        store.recover_dead(now, Timestamp::MIN).await?;
        Ok(store)
    }

    /// Makes the next `count` commits fail as a full disk would.
    #[cfg(feature = "conformance")]
    pub fn fail_commits(&self, count: u32) {
        self.writer.fail_commits(count);
    }

    /// Runs `query` on a reader's connection, on a thread that may block. All its statements see
    /// the same state.
    async fn read<T, F>(&self, query: F) -> Result<T>
    where
        F: FnOnce(&Db<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        let readers = Arc::clone(&self.readers);
        let closed = || Error::new(Kind::Unavailable, "the store is closed");
        let places = Arc::clone(&self.readers.places);
        let place = places.acquire_owned().await.map_err(|_| closed())?;
        let task = tokio::task::spawn_blocking(move || {
            let connection = readers.idle().pop().ok_or_else(closed)?;
            let answer = connection
                .execute_batch("BEGIN")
                .map_err(db::failed)
                .and_then(|()| query(&Db::new(&connection)));
            // A transaction that only read has nothing to lose.
            let _ = connection.execute_batch("ROLLBACK");
            readers.idle().push(connection);
            // Here, not in the caller, who may have stopped waiting.
            drop(place);
            answer
        });
        let answer = task.await.map_err(broken)?;
        self.writer.availability.note(&answer);
        answer
    }
}

impl Readers {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn broken(error: tokio::task::JoinError) -> Error {
    Error::new(Kind::Internal, "a query broke off").because(error)
}

fn no_thread(error: std::io::Error) -> Error {
    Error::new(Kind::Unavailable, "cannot start the store's threads").because(error)
}
