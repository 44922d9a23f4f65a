//! The target of a copy from another back-end: rows come by the page, each with how far it goes.
//!
//! `posthaste.transfer` says what is copied, and is made when a copy begins. As long as its first
//! row says that the copy is not whole, no store opens the database.

use super::PostgresOptions;
use super::db::{Bind, Column as Values, Mode, Tx, Uuid, failed, params};
use super::open::{Target as Server, prepare};
use super::partitions::make_partitions_of;
use super::pool::Pool;
use crate::rows::Row;
use crate::transfer::{Column, Kind as ColumnKind, PAGE_ROWS, Sum, TABLES, Table, Value};
use crate::{Error, Kind, Result};
use futures_core::Stream;
use posthaste_core::time::Timestamp;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

/// Under this number, copies run one at a time ("phsv").
const COPY_LOCK: i64 = 0x7068_7376;
/// The row of `posthaste.transfer` that is about all of it; its cursor is the source's fingerprint.
const WHOLE: &str = "";

const MAKE: &str = "
    CREATE TABLE IF NOT EXISTS posthaste.transfer (
        -- Empty: the whole copy.
        name text NOT NULL PRIMARY KEY,
        -- The key of the last row that was copied; of the whole, what the source held.
        cursor text,
        rows bigint NOT NULL,
        finished boolean NOT NULL
    )";

/// How far a table is.
pub(crate) struct Reached {
    pub rows: u64,
    pub after: Option<Vec<Value>>,
    pub finished: bool,
}

pub(crate) struct Target {
    pool: Arc<Pool>,
}

impl Target {
    /// Connects, and brings the schema up to date.
    pub async fn open(url: &str, options: PostgresOptions, now: Timestamp) -> Result<Self> {
        let server: Server = options.direct_target(url)?;
        let pool = Pool::new(server, options);
        prepare(&pool, now).await?;
        Ok(Self { pool })
    }

    /// Begins, or goes on. Says whether it was finished before.
    pub async fn begin(&self, fingerprint: &str) -> Result<bool> {
        let tx = self.transaction().await?;
        let begun = begin(&tx, fingerprint).await;
        let begun = match begun {
            Ok(finished) => tx.commit().await.map(|()| finished),
            Err(error) => Err(error),
        };
        tx.end().await;
        begun
    }

    /// Partitions for messages of these weeks.
    pub async fn make_partitions(&self, weeks: &[Timestamp]) -> Result<()> {
        let tx = self.transaction().await?;
        let made = match make_partitions_of(&tx, weeks).await {
            Ok(()) => tx.commit().await,
            Err(error) => Err(error),
        };
        tx.end().await;
        made
    }

    pub async fn progress(&self, table: &Table) -> Result<Reached> {
        let tx = self.pool.begin(Mode::Read).await?;
        let sql = "SELECT rows, cursor, finished FROM posthaste.transfer WHERE name = $1";
        let found = tx
            .one(sql, params![table.name], |row| {
                let rows = row.number()?;
                let after = row.opt_text()?.map(read_cursor).transpose()?;
                Ok(Reached { rows, after, finished: row.flag()? })
            })
            .await;
        tx.end().await;
        Ok(found?.unwrap_or(Reached { rows: 0, after: None, finished: false }))
    }

    /// Writes a page and how far it goes in one transaction.
    pub async fn write(
        &self,
        table: &Table,
        rows: Vec<Vec<Value>>,
        next: Option<&[Value]>,
        reached: &Reached,
    ) -> Result<()> {
        let tx = self.transaction().await?;
        let written = async {
            hold(&tx).await?;
            insert(&tx, table, rows).await?;
            let sql = "INSERT INTO posthaste.transfer (name, cursor, rows, finished)
                VALUES ($1, $2, $3, $4)
                ON CONFLICT (name) DO UPDATE SET cursor = excluded.cursor,
                    rows = excluded.rows, finished = excluded.finished
                WHERE transfer.rows <= excluded.rows";
            let rows = i64::try_from(reached.rows).unwrap_or(i64::MAX);
            let row = params![table.name, next.map(write_cursor), rows, reached.finished];
            tx.run(sql, row).await?;
            tx.commit().await
        };
        let written = written.await;
        tx.end().await;
        let context = format!("table {} cannot be copied", table.name);
        written.map_err(|error| Error::new(error.kind(), context).because(error))
    }

    /// What the table holds.
    pub async fn sum(&self, table: &Table) -> Result<Sum> {
        let tx = self.pool.begin(Mode::Read).await?;
        let sum = async {
            tx.take_time().await?;
            let columns: Vec<&str> = table.columns.iter().map(|column| column.name).collect();
            let sql = format!("SELECT {} FROM posthaste.{}", columns.join(", "), table.name);
            let mut sum = Sum::default();
            tx.each(&sql, |row| {
                let value = |(at, column): (usize, &Column)| value_of(row, at, column.kind);
                let values = table.columns.iter().enumerate().map(value);
                sum.add(&values.collect::<Result<Vec<_>>>()?);
                Ok(())
            })
            .await?;
            Ok(sum)
        };
        let sum = sum.await;
        tx.end().await;
        sum
    }

    /// From now on stores may open it.
    pub async fn finish(&self) -> Result<()> {
        let tx = self.transaction().await?;
        let finished = async {
            for table in TABLES {
                tx.batch(&format!("ANALYZE posthaste.{}", table.name)).await?;
            }
            let sql = "UPDATE posthaste.transfer SET finished = true WHERE name = $1";
            tx.run(sql, params![WHOLE]).await?;
            tx.commit().await
        };
        let finished = finished.await;
        tx.end().await;
        self.pool.close();
        finished
    }

    /// Whoever came first may take its time.
    async fn transaction(&self) -> Result<Tx> {
        let tx = self.pool.begin(Mode::Write).await?;
        tx.take_time().await?;
        Ok(tx)
    }
}

/// Called by whoever opens the database to use it.
///
/// # Errors
/// `Unusable` when a copy into this database was begun and is not whole yet.
pub(super) async fn check_whole(pool: &Arc<Pool>) -> Result<()> {
    let tx = pool.begin(Mode::Read).await?;
    let checked = check(&tx).await;
    tx.end().await;
    checked
}

async fn check(tx: &Tx) -> Result<()> {
    let there = "SELECT to_regclass('posthaste.transfer') IS NOT NULL";
    if !tx.get(there, params![], |row| row.flag()).await? {
        return Ok(());
    }
    let sql = "SELECT 1 FROM posthaste.transfer WHERE name = $1 AND NOT finished";
    if tx.one(sql, params![WHOLE], |row| row.int()).await?.is_none() {
        return Ok(());
    }
    let text = "a copy into this database is not whole yet; run `posthaste migrate --to` again, \
                which goes on where it ended";
    Err(Error::new(Kind::Unusable, text))
}

async fn begin(tx: &Tx, fingerprint: &str) -> Result<bool> {
    hold(tx).await?;
    tx.batch(MAKE).await?;
    let sql = "SELECT cursor, finished FROM posthaste.transfer WHERE name = $1";
    let found =
        tx.one(sql, params![WHOLE], |row| Ok((row.text()?.to_owned(), row.flag()?))).await?;
    match found {
        Some((_, true)) => Ok(true),
        Some((begun, false)) if begun == fingerprint => Ok(false),
        Some(_) => {
            let text = "the copy in this database was begun from another folder, or this one was \
                        used since; drop the schema posthaste there and copy again";
            Err(Error::new(Kind::Unusable, text))
        }
        None => {
            check_empty(tx).await?;
            let sql = "INSERT INTO posthaste.transfer (name, cursor, rows, finished)
                VALUES ($1, $2, 0, false)";
            tx.run(sql, params![WHOLE, fingerprint]).await?;
            Ok(false)
        }
    }
}

/// One copy at a time. One that was killed may hold the lock until the server notices.
async fn hold(tx: &Tx) -> Result<()> {
    tx.batch("SET LOCAL lock_timeout = '10s'").await?;
    let lock = "SELECT pg_advisory_xact_lock($1)";
    let held = tx.one(lock, params![COPY_LOCK], |_| Ok(())).await;
    if held.is_err() && !tx.is_broken() {
        return Err(Error::new(Kind::Unavailable, "another copy into this database is running"));
    }
    held?;
    tx.batch("SET LOCAL lock_timeout = 0").await
}

async fn check_empty(tx: &Tx) -> Result<()> {
    for table in TABLES.iter().map(|table| table.name).chain(["worker", "enqueued"]) {
        let sql = format!("SELECT EXISTS (SELECT 1 FROM posthaste.{table})");
        if tx.get(&sql, params![], |row| row.flag()).await? {
            let text = format!(
                "the target has other data (table {table}); name an empty database, or drop the \
                 schema posthaste there"
            );
            return Err(Error::new(Kind::Unusable, text));
        }
    }
    Ok(())
}

async fn insert(tx: &Tx, table: &Table, rows: Vec<Vec<Value>>) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut columns: Vec<Vec<Value>> = Vec::new();
    columns.resize_with(table.columns.len(), || Vec::with_capacity(PAGE_ROWS.min(rows.len())));
    for row in rows {
        for (column, value) in columns.iter_mut().zip(row) {
            column.push(value);
        }
    }
    let columns: Vec<Box<dyn Bind + Send>> = table
        .columns
        .iter()
        .zip(columns)
        .map(|(column, values)| bound(column.kind, values))
        .collect::<Result<_>>()?;
    let names: Vec<&str> = table.columns.iter().map(|column| column.name).collect();
    let arrays: Vec<String> = table
        .columns
        .iter()
        .enumerate()
        .map(|(at, column)| format!("${}::{}[]", at + 1, type_name(column.kind)))
        .collect();
    let sql = format!(
        "INSERT INTO posthaste.{} ({}) SELECT * FROM unnest({})",
        table.name,
        names.join(", "),
        arrays.join(", ")
    );
    let params: Vec<&dyn Bind> = columns.iter().map(|column| &**column as &dyn Bind).collect();
    tx.run(&sql, &params).await.map(drop)
}

const fn type_name(kind: ColumnKind) -> &'static str {
    match kind {
        ColumnKind::Id => "uuid",
        ColumnKind::Int => "int8",
        ColumnKind::Flag => "bool",
        ColumnKind::Text => "text",
        ColumnKind::Bytes => "bytea",
    }
}

/// A column as a parameter.
fn bound(kind: ColumnKind, values: Vec<Value>) -> Result<Box<dyn Bind + Send>> {
    let odd = || Error::new(Kind::Internal, "stored data: a column of the source has another type");
    macro_rules! column {
        ($($value:pat => $to:expr),+) => {
            Box::new(
                values
                    .into_iter()
                    .map(|value| match value {
                        Value::Null => Ok(None),
                        $($value => $to.map(Some),)+
                        _ => Err(odd()),
                    })
                    .collect::<Result<Vec<Option<_>>>>()
                    .map(Values)?,
            )
        };
    }
    Ok(match kind {
        ColumnKind::Id => column!(Value::Bytes(bytes) => {
            <[u8; 16]>::try_from(bytes).map(Uuid).map_err(|_| odd())
        }),
        ColumnKind::Int => column!(Value::Int(number) => Ok::<i64, Error>(number)),
        ColumnKind::Flag => column!(Value::Int(number) => Ok::<bool, Error>(number != 0)),
        ColumnKind::Text => column!(Value::Text(text) => Ok::<String, Error>(text)),
        ColumnKind::Bytes => column!(Value::Bytes(bytes) => Ok::<Vec<u8>, Error>(bytes)),
    })
}

fn value_of(row: &tokio_postgres::Row, at: usize, kind: ColumnKind) -> Result<Value> {
    Ok(match kind {
        ColumnKind::Int | ColumnKind::Flag => row.int(at)?.map_or(Value::Null, Value::Int),
        ColumnKind::Text => row.text(at)?.map_or(Value::Null, |text| Value::Text(text.to_owned())),
        ColumnKind::Id | ColumnKind::Bytes => {
            row.blob(at)?.map_or(Value::Null, |bytes| Value::Bytes(bytes.to_vec()))
        }
    })
}

/// A key as text: each value with a letter for its type.
fn write_cursor(key: &[Value]) -> String {
    let texts = key.iter().map(|value| match value {
        Value::Null => "n".to_owned(),
        Value::Int(number) => format!("i{number}"),
        Value::Text(text) => format!("t{text}"),
        Value::Bytes(bytes) => {
            bytes.iter().fold("b".to_owned(), |text, byte| format!("{text}{byte:02x}"))
        }
    });
    // Names and numbers have no line breaks.
    texts.collect::<Vec<_>>().join("\n")
}

fn read_cursor(text: &str) -> Result<Vec<Value>> {
    let value = |text: &str| {
        let (kind, rest) = text.split_at_checked(1)?;
        Some(match kind {
            "n" => Value::Null,
            "i" => Value::Int(rest.parse().ok()?),
            "t" => Value::Text(rest.to_owned()),
            _ => Value::Bytes(
                (0..rest.len() / 2)
                    .map(|at| u8::from_str_radix(rest.get(2 * at..2 * at + 2)?, 16).ok())
                    .collect::<Option<_>>()?,
            ),
        })
    };
    let values = text.split('\n').map(value).collect::<Option<_>>();
    values.ok_or_else(|| Error::new(Kind::Unusable, "the target's note of the copy is damaged"))
}

impl Tx {
    /// Row after row of a query without parameters, however many there are.
    async fn each(
        &self,
        sql: &str,
        mut read: impl FnMut(&tokio_postgres::Row) -> Result<()>,
    ) -> Result<()> {
        let none: [(bool, tokio_postgres::types::Type); 0] = [];
        let rows = self.client().query_typed_raw(sql, none).await.map_err(failed)?;
        let mut rows = pin!(rows);
        while let Some(row) = poll_fn(|context| rows.as_mut().poll_next(context)).await {
            read(&row.map_err(failed)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_back_as_it_was() {
        for key in [
            vec![Value::Int(-7)],
            vec![Value::Text("org_one".into()), Value::Text("order.paid".into())],
            vec![Value::Int(1), Value::Bytes(Vec::new()), Value::Bytes(vec![0, 0xFF])],
        ] {
            assert_eq!(read_cursor(&write_cursor(&key)).unwrap(), key);
        }
    }
}
