//! The lists by application and by endpoint, which are written some moments after what they list.
//!
//! A commit appends messages, ended deliveries and attempts to few pages, but each row of a list
//! in the order of endpoints belongs on a page of its own. So the writer fills the lists every some
//! hundred rows, sorted, within a commit that is made anyway.
//!
//! **Invariant:** whoever reads a list sees everything that was committed before it asked: it looks
//! whether the lists are complete, and has the writer complete them if they are not.

use super::SqliteStore;
use super::db::Db;
use super::history::sql;
use super::writer::Urgency;
use crate::Result;
use rusqlite::params;

/// After so many operations, about one for each row that can be listed, the writer fills the lists.
pub(super) const FILL_EVERY: usize = 1_024;
/// Rows of one list that are filled in at once.
const ROWS_MAX: i64 = 2_048;

impl SqliteStore {
    /// Like `read`, for queries that walk a list.
    pub(super) async fn read_lists<T, F>(&self, query: F) -> Result<T>
    where
        F: FnOnce(&Db<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        let mut are_behind = self.read(|db| Progress::read(db).map(Progress::is_behind)).await?;
        while are_behind {
            let fill = |tx: &mut super::writer::Tx<'_>| fill(&tx.db);
            are_behind = self.writer.call(Urgency::Now, FILL_EVERY, fill).await?;
        }
        self.read(query).await
    }
}

/// Lists a bounded batch of what is not listed yet; whether something is left.
pub(super) fn fill(db: &Db<'_>) -> Result<bool> {
    let Progress { listed, last } = Progress::read(db)?;
    let fillers = [sql::LIST_MESSAGES, sql::LIST_ENDED, sql::LIST_ATTEMPTS];
    let mut until = last;
    for (index, filler) in fillers.into_iter().enumerate() {
        until[index] = last[index].min(listed[index] + ROWS_MAX);
        if until[index] > listed[index] {
            db.run(filler, params![listed[index], until[index]])?;
        }
    }
    if until != listed {
        db.run(sql::LISTS_ADVANCE, until)?;
    }
    Ok(until != last)
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
