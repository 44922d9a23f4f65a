//! The source of a copy into another back-end: the whole database, read page by page.

use super::db::failed;
use super::open::MIGRATIONS;
use crate::migrate::pending;
use crate::transfer::{PAGE_BYTES, PAGE_ROWS, Page, Table, Value};
use crate::{Error, Kind, Result};
use posthaste_core::id::MessageId;
use posthaste_core::time::Timestamp;
use rusqlite::config::DbConfig;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, ToSql, params_from_iter};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

const WEEK: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Weeks of history that are told: ten years.
const WEEKS_MAX: usize = 520;
/// How long a lock that is about to go is waited for.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// A database that nobody else can open while this lives.
pub(crate) struct Source {
    /// Gone only while a query runs.
    connection: Option<Connection>,
}

impl Source {
    pub async fn open(path: PathBuf) -> Result<Self> {
        let open = move || open(&path).map(|connection| Self { connection: Some(connection) });
        tokio::task::spawn_blocking(open).await.map_err(super::broken)?
    }

    /// Tells this content from other content, and from its own later state.
    pub async fn fingerprint(&mut self) -> Result<String> {
        self.read(|connection| {
            let sql = "SELECT format('%d %d %d %d %d %d',
                (SELECT ifnull(max(seq), 0) FROM message), (SELECT ifnull(max(seq), 0) FROM ended),
                (SELECT ifnull(max(seq), 0) FROM attempt),
                (SELECT ifnull(sum(routes_version), 0) FROM application),
                (SELECT count(*) FROM delivery),
                (SELECT ifnull(sum(lease_number + state + due_at % 1000003), 0) FROM delivery))";
            connection.query_row(sql, [], |row| row.get(0)).map_err(failed)
        })
        .await
    }

    /// Starts of weeks of which there are messages.
    pub async fn weeks(&mut self) -> Result<Vec<Timestamp>> {
        self.read(|connection| {
            let sql = "SELECT id FROM message_list UNION ALL
                SELECT id FROM message WHERE seq > (SELECT message_seq FROM listed)";
            let mut statement = connection.prepare(sql).map_err(failed)?;
            let mut rows = statement.query([]).map_err(failed)?;
            let week = WEEK.as_secs().cast_signed();
            let mut weeks = BTreeSet::new();
            while let Some(row) = rows.next().map_err(failed)? {
                let at = MessageId::from_bytes(row.get(0).map_err(failed)?).timestamp();
                weeks.insert(at.as_secs().div_euclid(week) * week);
                // The latest are kept: what is older is copied all the same.
                if weeks.len() > WEEKS_MAX {
                    weeks.pop_first();
                }
            }
            Ok(weeks.into_iter().map(Timestamp::from_secs).collect())
        })
        .await
    }

    /// The rows after a key.
    pub async fn page(&mut self, table: &'static Table, after: Option<Vec<Value>>) -> Result<Page> {
        self.read(move |connection| page(connection, table, after.as_deref())).await
    }

    async fn read<T: Send + 'static>(
        &mut self,
        query: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let connection = self.connection.take();
        let connection =
            connection.ok_or_else(|| Error::new(Kind::Internal, "a copy's query broke off"))?;
        let task = tokio::task::spawn_blocking(move || {
            let answer = query(&connection);
            (connection, answer)
        });
        let (connection, answer) = task.await.map_err(super::broken)?;
        self.connection = Some(connection);
        answer
    }
}

/// Every process that uses the database holds SQLite's shared lock on the file for as long as it
/// has it open (write-ahead log), so the exclusive lock is to be had only when nobody does; and
/// while it is held, nobody gets in. The system lets go of it when the process dies.
fn open(path: &Path) -> Result<Connection> {
    if !path.exists() {
        let text = format!("there is no database {}", path.display());
        return Err(Error::new(Kind::Unusable, text));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    let applied = lock(&connection).map_err(|error| in_use(path, error))?;
    if pending(MIGRATIONS, &applied)?.is_empty() {
        return Ok(connection);
    }
    let text = format!(
        "the database {} is of an older version; bring it to this one first (`posthaste migrate` \
         without --to)",
        path.display()
    );
    Err(Error::new(Kind::Unusable, text))
}

/// Takes the lock; gives the changes of the schema that were applied.
fn lock(connection: &Connection) -> rusqlite::Result<Vec<(i64, String)>> {
    // The lock needs a file that could be written; that it is not is seen to here. The log stays
    // where it is, too.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // The transaction never ends: one state is read, and the lock is never let go.
    connection.execute_batch(
        "PRAGMA query_only = ON; PRAGMA locking_mode = EXCLUSIVE; PRAGMA cache_size = -16384;
         PRAGMA wal_autocheckpoint = 0; PRAGMA trusted_schema = OFF; BEGIN;",
    )?;
    let sql = "SELECT number, checksum FROM migration ORDER BY number";
    let mut statement = connection.prepare(sql)?;
    statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

fn in_use(path: &Path, error: rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            let text = format!(
                "the database {} is in use (another process holds SQLite's lock on it); stop every \
                 posthaste that uses this folder and copy again",
                path.display()
            );
            Error::new(Kind::Unusable, text)
        }
        _ => {
            let text = format!("the database {} cannot be copied", path.display());
            Error::new(Kind::Unusable, text).because(failed(error))
        }
    }
}

fn page(connection: &Connection, table: &Table, after: Option<&[Value]>) -> Result<Page> {
    let key = table.key.join(", ");
    let columns: Vec<&str> = table.columns.iter().map(|column| column.read).collect();
    let condition = match after {
        None => "true".to_owned(),
        Some(_) => {
            let marks: Vec<String> = (1..=table.key.len()).map(|at| format!("?{at}")).collect();
            format!("({key}) > ({})", marks.join(", "))
        }
    };
    let sql = format!(
        "SELECT {}, {key} FROM {} WHERE {} AND {condition} ORDER BY {key} LIMIT {PAGE_ROWS}",
        columns.join(", "),
        table.from,
        table.only
    );
    let mut statement = connection.prepare_cached(&sql).map_err(failed)?;
    let params = params_from_iter(after.unwrap_or_default());
    let mut found = statement.query(params).map_err(failed)?;
    let (mut rows, mut next, mut bytes) = (Vec::new(), None, 0);
    while let Some(row) = found.next().map_err(failed)? {
        let value = |column| row.get_ref(column).map_err(failed).and_then(value_of);
        let width = table.columns.len();
        let values = (0..width).map(value).collect::<Result<Vec<Value>>>()?;
        bytes += values.iter().map(Value::size).sum::<usize>();
        rows.push(values);
        if rows.len() == PAGE_ROWS || bytes >= PAGE_BYTES {
            next = Some((width..width + table.key.len()).map(value).collect::<Result<_>>()?);
            break;
        }
    }
    Ok(Page { rows, next })
}

fn value_of(value: ValueRef<'_>) -> Result<Value> {
    let odd = |what| Error::new(Kind::Internal, format!("stored data: {what}"));
    Ok(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Int(number),
        ValueRef::Text(text) => {
            let text = std::str::from_utf8(text).map_err(|_| odd("a text is not UTF-8"))?;
            Value::Text(text.to_owned())
        }
        ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
        ValueRef::Real(_) => return Err(odd("a fraction")),
    })
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Int(number) => ValueRef::Integer(*number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}
