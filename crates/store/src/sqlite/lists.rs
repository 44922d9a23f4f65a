//! The lists by application, endpoint, message and expiry, which are written some moments after
//! what they list.
//!
//! A commit appends messages, ended deliveries and attempts to few pages, but each row of a list
//! in the order of endpoints belongs on a page of its own. So the writer fills the lists every some
//! thousand rows, sorted, within a commit that is made anyway.
//!
//! **Invariant:** whoever reads a list sees everything that was committed before it asked. A reader
//! looks whether the lists are complete, and has the writer complete them if they are not; the
//! writer completes them within its transaction. Queries for one row by its id, and those that put
//! together what is open and what has ended, also look through what is not listed yet: the first
//! need no writer, and from the second nothing may vanish that ends while they are asked.

use super::SqliteStore;
use super::db::Db;
use super::history::sql;
use super::writer::Urgency;
use crate::Result;
use rusqlite::params;

/// After so many operations, about one for each row that can be listed, the writer lists what came
/// of the source that is furthest behind.
pub(super) const FILL_EVERY: usize = 1_024;
/// Rows of one source that are listed at once.
const ROWS_MAX: i64 = 4_096;
/// What lists messages, ended deliveries and attempts.
const SOURCES: [&[&str]; 3] = [
    &[sql::LIST_MESSAGES, sql::LIST_EXPIRIES],
    &[sql::LIST_ENDED],
    &[sql::LIST_ATTEMPTS, sql::LIST_ATTEMPTS_OF_MESSAGES],
];
const ALL: [usize; 3] = [0, 1, 2];

impl SqliteStore {
    /// Like `read`, for queries that walk a list.
    pub(super) async fn read_lists<T, F>(&self, query: F) -> Result<T>
    where
        F: FnOnce(&Db<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        if self.read(|db| Progress::read(db).map(Progress::is_behind)).await? {
            self.complete_lists().await?;
        }
        self.read(query).await
    }

    /// Has the writer list what is not listed, a bounded batch in each transaction.
    pub(super) async fn complete_lists(&self) -> Result<()> {
        let next = |tx: &mut super::writer::Tx<'_>| fill(&tx.db, &ALL);
        while self.writer.call(Urgency::Now, FILL_EVERY, next).await? {}
        Ok(())
    }
}

/// When it is time to list something.
#[derive(Default)]
pub(super) struct Turn {
    /// Operations since the last time.
    operations: usize,
}

impl Turn {
    /// Notes that `operations` rows are about to be written.
    pub fn grew(&mut self, operations: usize) {
        self.operations += operations;
    }

    /// Lists a bounded batch of one source, when enough has come; again at the next commit, when
    /// more than that came of it.
    pub fn take(&mut self, db: &Db<'_>) -> Result<()> {
        if self.operations < FILL_EVERY {
            return Ok(());
        }
        let progress = Progress::read(db)?;
        let furthest = ALL.into_iter().max_by_key(|source| progress.behind(*source));
        let more = furthest.map_or(Ok(false), |source| fill(db, &[source]))?;
        self.operations = if more { FILL_EVERY } else { 0 };
        Ok(())
    }
}

/// Lists all that is not listed yet: little, because whatever comes gets its turn.
pub(super) fn complete(db: &Db<'_>) -> Result<()> {
    while fill(db, &ALL)? {}
    Ok(())
}

/// Lists a bounded batch of some sources; whether something of them is left.
fn fill(db: &Db<'_>, sources: &[usize]) -> Result<bool> {
    let Progress { listed, last } = Progress::read(db)?;
    let mut until = listed;
    for source in sources.iter().copied() {
        until[source] = last[source].min(listed[source] + ROWS_MAX);
        if until[source] > listed[source] {
            for filler in SOURCES[source] {
                db.run(filler, params![listed[source], until[source]])?;
            }
        }
    }
    if until != listed {
        db.run(sql::LISTS_ADVANCE, until)?;
    }
    Ok(sources.iter().any(|source| until[*source] < last[*source]))
}

/// Of messages, ended deliveries and attempts.
#[derive(Clone, Copy)]
struct Progress {
    /// The last `seq` that is listed.
    listed: [i64; 3],
    /// The last there is.
    last: [i64; 3],
}

impl Progress {
    fn read(db: &Db<'_>) -> Result<Self> {
        db.get(sql::LISTS_BEHIND, [], |row| {
            let listed = [row.int()?, row.int()?, row.int()?];
            Ok(Self { listed, last: [row.int()?, row.int()?, row.int()?] })
        })
    }

    /// Rows of a source that are not listed.
    fn behind(self, source: usize) -> i64 {
        self.last[source] - self.listed[source]
    }

    fn is_behind(self) -> bool {
        self.listed != self.last
    }
}
