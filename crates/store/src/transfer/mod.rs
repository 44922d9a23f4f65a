//! Copies what a SQLite database holds into an empty PostgreSQL one, so that the embedded store is
//! never a dead end.
//!
//! Rows go in pages, in the order of a key; each page is committed together with how far it goes,
//! so a copy that was cut off goes on where it ended. At the end both sides are read once more and
//! compared by counts and checksums.
//!
//! Workers are not copied: what they held becomes due when their leases run out.
//!
//! **Invariant:** the source is only read. SQLite's own lock keeps everybody else out of it for as
//! long as the copy runs, and refuses while anybody has it open.
//!
//! **Invariant:** memory is bounded by a page, whatever the tables hold.

mod tables;

pub(crate) use tables::{Column, Kind, TABLES, Table};

use crate::postgres::transfer::Target;
use crate::sqlite::transfer::Source;
use crate::{Error, PostgresOptions, Result};
use posthaste_core::time::Timestamp;
use std::path::Path;

/// Rows of a page.
pub(crate) const PAGE_ROWS: usize = 2_000;
/// Bytes after which a page ends; one row goes whatever its size.
pub(crate) const PAGE_BYTES: usize = 8 * 1024 * 1024;

/// One value of a row, in one form for both sides.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Null,
    Int(i64),
    Text(String),
    Bytes(Vec<u8>),
}

/// Rows that follow each other in the source.
pub(crate) struct Page {
    pub rows: Vec<Vec<Value>>,
    /// The key of the last row; `None`: the table ends here.
    pub next: Option<Vec<Value>>,
}

/// Rows and what they add up to, in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub rows: u64,
    pub checksum: u64,
}

/// One table, copied and found to be the same on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableReport {
    pub table: &'static str,
    pub sum: Sum,
}

/// How a copy went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub tables: Vec<TableReport>,
    /// Rows that an earlier run had copied.
    pub rows_before: u64,
    /// An earlier run had finished; this one changed and compared nothing.
    pub finished_before: bool,
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// So many rows of the table are there.
    Copied { table: &'static str, rows: u64 },
    /// The table is the same on both sides.
    Verified { table: &'static str, sum: Sum },
}

/// Copies the database at `source` into the one at `url`, or goes on with that.
///
/// # Errors
/// `Unusable` with the way out when a process uses the source, either schema is not of this version
/// or the target has other data, and when the two differ at the end; `Unavailable` when the target
/// cannot be reached: run it again.
pub async fn copy_to_postgres(
    source: &Path,
    url: &str,
    options: PostgresOptions,
    now: Timestamp,
    mut told: impl FnMut(Progress) + Send,
) -> Result<Report> {
    let mut source = Source::open(source.to_owned()).await?;
    let target = Target::open(url, options, now).await?;
    let fingerprint = source.fingerprint().await?;
    if target.begin(&fingerprint).await? {
        return Ok(Report { tables: Vec::new(), rows_before: 0, finished_before: true });
    }
    target.make_partitions(&source.weeks().await?).await?;
    let mut rows_before = 0;
    for table in TABLES {
        rows_before += copy(&mut source, &target, table, &mut told).await?;
    }
    let mut tables = Vec::with_capacity(TABLES.len());
    for table in TABLES {
        let sum = verify(&mut source, &target, table).await?;
        told(Progress::Verified { table: table.name, sum });
        tables.push(TableReport { table: table.name, sum });
    }
    target.finish().await?;
    Ok(Report { tables, rows_before, finished_before: false })
}

/// Copies what is missing of a table. Returns how many rows were there.
async fn copy(
    source: &mut Source,
    target: &Target,
    table: &'static Table,
    told: &mut (impl FnMut(Progress) + Send),
) -> Result<u64> {
    let mut at = target.progress(table).await?;
    let before = at.rows;
    while !at.finished {
        let page = source.page(table, at.after.take()).await?;
        at.rows += page.rows.len() as u64;
        at.finished = page.next.is_none();
        target.write(table, page.rows, page.next.as_deref(), &at).await?;
        at.after = page.next;
        told(Progress::Copied { table: table.name, rows: at.rows });
    }
    Ok(before)
}

async fn verify(source: &mut Source, target: &Target, table: &'static Table) -> Result<Sum> {
    let mut ours = Sum::default();
    let mut after = None;
    loop {
        let page = source.page(table, after).await?;
        for row in &page.rows {
            ours.add(row);
        }
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    let theirs = target.sum(table).await?;
    if ours == theirs {
        return Ok(ours);
    }
    let text = format!(
        "the copy of table {} differs: {} rows with checksum {:016x} in the source, {} with \
         {:016x} in the target. The source was used since the copy began, or the target is: see \
         that no server uses either, drop the schema posthaste in the target and copy again",
        table.name, ours.rows, ours.checksum, theirs.rows, theirs.checksum
    );
    Err(Error::new(crate::Kind::Unusable, text))
}

impl Sum {
    /// FNV-1a with 64 bits over the row, added up: it guards against mistakes, not against forgery.
    pub(crate) fn add(&mut self, row: &[Value]) {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut eat = |bytes: &[u8]| {
            for byte in bytes {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        for value in row {
            // Tagged and with lengths, so that no two rows look alike.
            match value {
                Value::Null => eat(&[0]),
                Value::Int(number) => {
                    eat(&[1]);
                    eat(&number.to_le_bytes());
                }
                Value::Text(text) => {
                    eat(&[2]);
                    eat(&text.len().to_le_bytes());
                    eat(text.as_bytes());
                }
                Value::Bytes(bytes) => {
                    eat(&[3]);
                    eat(&bytes.len().to_le_bytes());
                    eat(bytes);
                }
            }
        }
        self.rows += 1;
        self.checksum = self.checksum.wrapping_add(hash);
    }
}

impl Value {
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Null | Self::Int(_) => 8,
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(rows: &[Vec<Value>]) -> Sum {
        let mut sum = Sum::default();
        for row in rows {
            sum.add(row);
        }
        sum
    }

    #[test]
    fn the_order_of_rows_does_not_count_but_everything_else_does() {
        let (one, two) = (vec![Value::Int(1), Value::Null], vec![Value::Text("a".to_owned())]);
        let whole = sum(&[one.clone(), two.clone()]);
        assert_eq!(whole, sum(&[two.clone(), one.clone()]));
        assert_ne!(whole, sum(&[one.clone(), one.clone()]));
        assert_ne!(sum(&[vec![Value::Null, Value::Int(1)]]), sum(&[one]));
        assert_ne!(sum(&[vec![Value::Bytes(b"a".to_vec())]]), sum(&[two]));
        let parted = |parts: [&str; 2]| vec![parts.map(|part| Value::Text(part.into())).to_vec()];
        assert_ne!(sum(&parted(["ab", "c"])), sum(&parted(["a", "bc"])));
    }
}
