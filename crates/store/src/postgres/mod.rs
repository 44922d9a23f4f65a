//! The store on PostgreSQL: any number of processes on any number of machines.
//!
//! What SQLite gets from being one writer is got from row locks, which are always taken in one
//! order, so that nobody waits in a circle: requests' keys, applications, event ids, lanes,
//! limiters, and only then everything else; several of a kind in the order of their ids. Whoever
//! loses a race all the same does its work again.
//!
//! **Invariant:** whoever changes a delivery that is there holds the lock of its lane.
//!
//! **Invariant:** whoever changes an application, or anything that routes are made of, writes the
//! application's row; an accept holds a share of it.

/// Runs `$work` in a transaction and commits it, unless it ended it itself; gives its result.
/// `Read`, `Write` or `Indexed` says what for (`db::Mode`).
///
/// It runs again when it lost a race: a row that it had looked for in vain was there when it wrote.
/// A macro, because a closure's future could not be shown to be `Send`.
macro_rules! transact {
    ($core:expr, $mode:ident, |$tx:ident| $work:expr) => {{
        let core = &*$core;
        let mut races = 0;
        let done = loop {
            let tx = match core.pool.begin($crate::postgres::db::Mode::$mode).await {
                Ok(tx) => tx,
                Err(error) => break Err(error),
            };
            let done = {
                let $tx = &tx;
                async { $work }.await
            };
            if let Some(done) = $crate::postgres::settle(tx, done, &mut races).await {
                break done;
            }
        };
        core.pool.availability.note(&done);
        done
    }};
}

mod accept;
mod catalog;
mod changes;
mod claim;
mod db;
mod diagnosis;
mod history;
mod intake;
mod lanes;
mod listener;
mod nudges;
mod open;
mod outbox;
mod partitions;
mod pick;
mod pool;
mod record;
mod tls;
pub(crate) mod transfer;
mod upkeep;
mod writer;

#[cfg(test)]
mod queries_tests;

use crate::Result;
use crate::cache::Cache;
use db::Tx;
use nudges::Nudges;
use open::Target;
use pool::Pool;
use posthaste_core::endpoint::Endpoint;
use posthaste_core::id::EndpointId;
use posthaste_core::time::Timestamp;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use writer::Writer;

/// How often work that lost a race is done again.
const RACES_MAX: usize = 8;
/// Endpoints kept ready for claims.
const ENDPOINTS_KEPT_MAX: usize = 4_096;

/// How the store uses its server.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresOptions {
    /// Connections of this process.
    pub connections_max: usize,
    /// How long to wait for one of them.
    pub acquire_timeout: Duration,
    /// How long one statement may take.
    pub statement_timeout: Duration,
    /// The server itself, where the ordinary address is that of a pooler.
    pub direct_url: Option<String>,
    /// How often the connection that hears nudges is asked whether it lives.
    pub listen_check_every: Duration,
    /// A transaction that stays open for longer is warned of.
    pub snapshot_age_max: Duration,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            connections_max: 8,
            acquire_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(15),
            direct_url: None,
            listen_check_every: Duration::from_secs(10),
            snapshot_age_max: Duration::from_secs(5 * 60),
        }
    }
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("connections_max", &self.connections_max)
            .field("acquire_timeout", &self.acquire_timeout)
            .field("statement_timeout", &self.statement_timeout)
            .finish_non_exhaustive()
    }
}

/// An open database.
pub struct PostgresStore {
    core: Arc<Core>,
    writer: Writer,
    cache: Cache,
    nudges: Nudges,
}

/// What the writer's task and the callers share.
struct Core {
    pool: Arc<Pool>,
    snapshot_age_max: Duration,
    /// Endpoints with the version of their lane that they are a copy of.
    endpoints: Mutex<HashMap<EndpointId, (i64, Arc<Endpoint>)>>,
}

impl PostgresStore {
    /// Whether `url` can be the address of a PostgreSQL database; asks nobody.
    ///
    /// # Errors
    /// `Unusable`; the text holds nothing of the address.
    pub fn check_url(url: &str) -> Result<()> {
        Target::parse(url).map(drop)
    }

    /// Connects, and brings the schema up to date.
    ///
    /// # Errors
    /// `Unusable` with the way out when the address is none, the server is too old, refuses the
    /// user, or has the schema of a newer version; `Unavailable` when it cannot be reached now.
    pub async fn open(url: &str, options: PostgresOptions, now: Timestamp) -> Result<Self> {
        let direct = Pool::new(options.direct_target(url)?, options.clone());
        open::prepare(&direct, now).await?;
        transfer::check_whole(&direct).await?;
        direct.close();
        let pool = Pool::new(Target::parse(url)?, options.clone());
        let nudges = Nudges::start(&pool, options.direct_target(url)?, &options);
        let core = Arc::new(Core {
            pool,
            snapshot_age_max: options.snapshot_age_max,
            endpoints: Mutex::default(),
        });
        let writer = Writer::start(&core);
        Ok(Self { core, writer, cache: Cache::default(), nudges })
    }

    /// Makes the next `count` commits fail as a full disk would.
    #[cfg(feature = "conformance")]
    pub fn fail_commits(&self, count: u32) {
        self.core.pool.fail_commits(count);
    }
}

/// Commits what is done, unless it ended by itself, and lets go of the connection. `None`: it lost
/// a race and is to be done again.
async fn settle<T>(tx: Tx, done: Result<T>, races: &mut usize) -> Option<Result<T>> {
    let done = match done {
        Ok(value) if tx.is_open() => tx.commit().await.map(|()| value),
        done => done,
    };
    let lost = done.is_err() && tx.lost_a_race();
    tx.end().await;
    *races += 1;
    (!lost || *races >= RACES_MAX).then_some(done)
}

impl Core {
    fn endpoints(&self) -> MutexGuard<'_, HashMap<EndpointId, (i64, Arc<Endpoint>)>> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an endpoint; makes room by forgetting all when there are too many.
    fn keep_endpoint(&self, version: i64, endpoint: Arc<Endpoint>) {
        let mut endpoints = self.endpoints();
        if endpoints.len() >= ENDPOINTS_KEPT_MAX {
            endpoints.clear();
        }
        endpoints.insert(endpoint.id, (version, endpoint));
    }
}
