//! The lists by application, endpoint, message and expiry, which are written some moments after
//! what they list.
//!
//! A commit appends messages, ended deliveries and attempts to few pages, but each row of a list
//! in the order of endpoints belongs on a page of its own. So the writer fills the lists every some
//! hundred rows, sorted, within a commit that is made anyway.
//!
//! **Invariant:** whoever reads a list sees everything that was committed before it asked. A reader
//! looks whether the lists are complete, and has the writer complete them if they are not; the
//! writer completes them within its transaction; and the few queries that look for one row by its
//! id look through what is not listed yet, so that they need no writer.

use super::SqliteStore;
use super::db::Db;
use super::history::sql;
use super::writer::Urgency;
use crate::Result;
use rusqlite::params;

/// After so many operations, about one for each row that can be listed, the writer lists what came
/// of one source; of another the next time.
pub(super) const FILL_EVERY: usize = 1_024;
/// Rows of one source that are listed at once: more than come of it until it is its turn again.
const ROWS_MAX: i64 = 4_096;
/// What lists messages, ended deliveries and attempts.
const SOURCES: [&[&str]; 3] = [
    &[sql::LIST_MESSAGES, sql::LIST_EXPIRIES],
    &[sql::LIST_ENDED],
    &[sql::LIST_ATTEMPTS, sql::LIST_ATTEMPTS_OF_MESSAGES],
];

impl SqliteStore {
    /// Like `read`, for queries that walk a list.
    pub(super) async fn read_lists<T, F>(&self, query: F) -> Result<T>
    where
        F: FnOnce(&Db<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        let are_behind = self.read(|db| Progress::read(db).map(Progress::is_behind)).await?;
        if are_behind {
            let complete = |tx: &mut super::writer::Tx<'_>| complete(&tx.db);
            self.writer.call(Urgency::Now, FILL_EVERY, complete).await?;
        }
        self.read(query).await
    }
}

/// Whose turn it is to be listed.
#[derive(Default)]
pub(super) struct Turn {
    /// Operations since the last turn.
    operations: usize,
    source: usize,
}

impl Turn {
    /// Notes that `operations` rows are about to be written.
    pub fn grew(&mut self, operations: usize) {
        self.operations += operations;
    }

    /// Lists a bounded batch of one source, when enough has come.
    pub fn take(&mut self, db: &Db<'_>) -> Result<()> {
        if self.operations < FILL_EVERY {
            return Ok(());
        }
        fill(db, &[self.source])?;
        self.source = (self.source + 1) % SOURCES.len();
        self.operations = 0;
        Ok(())
    }
}

/// Lists all that is not listed yet: what came since the last turn of each source.
pub(super) fn complete(db: &Db<'_>) -> Result<()> {
    while fill(db, &[0, 1, 2])? {}
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

    fn is_behind(self) -> bool {
        self.listed != self.last
    }
}
