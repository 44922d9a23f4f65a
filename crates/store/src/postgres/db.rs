//! A transaction as the groups use it: typed statements, rows as `Fields`, errors as ours.
//!
//! Statements have no names on the server, so any connection serves any of them, and a pooler that
//! hands out connections by the transaction (PgBouncer) may stand between. They leave when their
//! future is first polled: join those that do not need each other's answers, and they share a round
//! trip.
//!
//! **Invariant:** nothing is set that outlives the transaction.

use super::pool::{Connection, Place};
use crate::Result;
use crate::error::{Error, Kind, Reason};
use crate::rows::{Fields, Row};
use bytes::BytesMut;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// What a transaction is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Reads; all its statements see the same state.
    Read,
    /// As `Read`, with the planner kept on the indexes: a page of a list is the beginning of an
    /// ordered walk, also where the statistics know nothing of a new week yet.
    Walk,
    /// Reads and writes; each statement sees what is committed when it begins.
    Write,
    /// As `Write`, with the planner kept on the indexes: statistics of a queue are always old.
    Indexed,
}

/// Values for `$1`, `$2`, ... with their types.
pub(super) type Params<'p> = &'p [Param<'p>];

/// One of them.
pub(super) type Param<'p> = &'p dyn Bind;

/// The parameters of a statement: `params![endpoint_id, now.as_micros()]`.
macro_rules! params {
    ($($value:expr),* $(,)?) => {
        &[$(&$value as &dyn $crate::postgres::db::Bind),*]
    };
}
pub(super) use params;

/// A value that can be a parameter.
pub(super) trait Bind: ToSql + Sync {
    fn kind(&self) -> Type;
}

/// Values of one type.
pub(super) trait Typed: ToSql + Sync {
    const TYPE: Type;
    const ARRAY: Type;
}

impl<T: Typed> Bind for T {
    fn kind(&self) -> Type {
        T::TYPE
    }
}

fn typed<'p>(params: Params<'p>) -> impl ExactSizeIterator<Item = (&'p (dyn ToSql + Sync), Type)> {
    params.iter().map(|value| (*value as &(dyn ToSql + Sync), value.kind()))
}

macro_rules! binds {
    ($($name:ty: $type:ident, $array:ident;)+) => {
        $(impl Typed for $name {
            const TYPE: Type = Type::$type;
            const ARRAY: Type = Type::$array;
        })+
    };
}
binds! {
    bool: BOOL, BOOL_ARRAY;
    i64: INT8, INT8_ARRAY;
    String: TEXT, TEXT_ARRAY;
    &str: TEXT, TEXT_ARRAY;
    &[u8]: BYTEA, BYTEA_ARRAY;
    Vec<u8>: BYTEA, BYTEA_ARRAY;
    Uuid: UUID, UUID_ARRAY;
}

impl<T: Typed> Typed for Option<T> {
    const TYPE: Type = T::TYPE;
    const ARRAY: Type = T::ARRAY;
}

/// A whole column of values, for `unnest`.
#[derive(Debug)]
pub(super) struct Column<T>(pub Vec<T>);

impl<T> FromIterator<T> for Column<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl<T: Typed> Typed for Column<T> {
    const TYPE: Type = T::ARRAY;
    const ARRAY: Type = T::ARRAY;
}

impl<T: Typed> ToSql for Column<T> {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        self.0.as_slice().to_sql(kind, out)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == T::ARRAY
    }

    to_sql_checked!();
}

/// An id as a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Uuid(pub [u8; 16]);

impl Uuid {
    pub const NIL: Self = Self([0; 16]);
    pub const MAX: Self = Self([0xFF; 16]);
}

macro_rules! uuids {
    ($($name:ident),+) => {
        $(impl From<posthaste_core::id::$name> for Uuid {
            fn from(id: posthaste_core::id::$name) -> Self {
                Self(*id.as_bytes())
            }
        })+
    };
}
uuids!(ApplicationId, AttemptId, EndpointId, MessageId, NoticeId, TaskId, WorkerId);

impl ToSql for Uuid {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }

    to_sql_checked!();
}

/// One transaction on a connection of the pool.
///
/// Dropped before it ended, it closes its connection, and the server rolls back what it had not
/// been told to commit.
///
/// **Invariant:** nothing here waits for ever. The server bounds its own work, and we what comes of
/// it, because a server that hangs keeps no bounds.
pub(super) struct Tx {
    connection: Connection,
    place: Place,
    state: AtomicU8,
    trouble: AtomicU8,
    /// Nothing bounds it.
    unhurried: AtomicBool,
}

const OPEN: u8 = 0;
const COMMITTED: u8 = 1;
const ROLLED_BACK: u8 = 2;

const NONE: u8 = 0;
/// Somebody else was quicker, or waited for us as we for them: all of it may be done again.
const CONFLICT: u8 = 1;
const DATA: u8 = 2;
const SILENT: u8 = 3;
/// It takes no writes: where there are several hosts, another one may.
const READ_ONLY: u8 = 4;

impl Tx {
    pub fn new(connection: Connection, place: Place) -> Self {
        let (state, trouble) = (AtomicU8::new(OPEN), AtomicU8::new(NONE));
        Self { connection, place, state, trouble, unhurried: AtomicBool::new(false) }
    }

    pub(super) fn client(&self) -> &tokio_postgres::Client {
        &self.connection.client
    }

    /// Begins. May be joined with the statements that follow, if it is polled first.
    pub async fn begin(&self, mode: Mode) -> Result<()> {
        let begun = self.connection.client.batch_execute(self.place.begin_sql(mode));
        self.answered(begun, self.place.begin_timeout()).await
    }

    /// Lifts the bounds of this transaction, ours and the server's: for work that is as long as the
    /// data, or that waits for another process to finish such work.
    pub async fn take_time(&self) -> Result<()> {
        self.unhurried.store(true, Ordering::Relaxed);
        self.batch("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0").await
    }

    /// Runs statements without parameters, one after the other.
    pub async fn batch(&self, sql: &str) -> Result<()> {
        let done = self.connection.client.batch_execute(sql);
        self.answered(done, self.place.answer_timeout()).await
    }

    /// Runs a statement; returns how many rows it changed.
    pub async fn run(&self, sql: &str, params: Params<'_>) -> Result<u64> {
        let params: Vec<_> = typed(params).collect();
        let done = self.connection.client.execute_typed(sql, &params);
        self.answered(done, self.place.answer_timeout()).await
    }

    /// The first row, if there is one.
    pub async fn one<T>(
        &self,
        sql: &str,
        params: Params<'_>,
        read: impl FnOnce(&mut Fields<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        let rows = self.rows(sql, params).await?;
        rows.first().map(|row| read(&mut Fields::new(row))).transpose()
    }

    /// The first row of a query that always has one.
    pub async fn get<T>(
        &self,
        sql: &str,
        params: Params<'_>,
        read: impl FnOnce(&mut Fields<'_>) -> Result<T>,
    ) -> Result<T> {
        let row = self.one(sql, params, read).await?;
        row.ok_or_else(|| Error::new(Kind::Internal, "a query that has one row had none"))
    }

    /// All rows; the query bounds them.
    pub async fn all<T>(
        &self,
        sql: &str,
        params: Params<'_>,
        mut read: impl FnMut(&mut Fields<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let rows = self.rows(sql, params).await?;
        rows.iter().map(|row| read(&mut Fields::new(row))).collect()
    }

    async fn rows(&self, sql: &str, params: Params<'_>) -> Result<Vec<tokio_postgres::Row>> {
        let params: Vec<_> = typed(params).collect();
        let rows = self.connection.client.query_typed(sql, &params);
        self.answered(rows, self.place.answer_timeout()).await
    }

    /// What the server answers, if it does so in time. One that does not gets no further word on
    /// this connection.
    async fn answered<T>(
        &self,
        answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
        bound: Duration,
    ) -> Result<T> {
        if self.unhurried.load(Ordering::Relaxed) {
            return answer.await.map_err(|error| self.failed(error));
        }
        match tokio::time::timeout(bound, answer).await {
            Ok(answer) => answer.map_err(|error| self.failed(error)),
            Err(_) => {
                self.trouble.store(SILENT, Ordering::Relaxed);
                self.place.lead_nowhere();
                Err(Error::unavailable(Reason::Silent, "the database does not answer"))
            }
        }
    }

    /// Makes it all durable. May be joined with the statements before it, if it is polled last:
    /// when one of them fails, the server rolls back instead.
    pub async fn commit(&self) -> Result<()> {
        #[cfg(feature = "conformance")]
        self.place.fault()?;
        self.batch("COMMIT").await?;
        self.state.store(COMMITTED, Ordering::Relaxed);
        Ok(())
    }

    /// Takes everything back.
    pub async fn roll_back(&self) -> Result<()> {
        self.batch("ROLLBACK").await?;
        self.state.store(ROLLED_BACK, Ordering::Relaxed);
        Ok(())
    }

    pub fn is_open(&self) -> bool {
        self.state.load(Ordering::Relaxed) == OPEN
    }

    /// Whether it failed only because somebody else was quicker.
    pub fn lost_a_race(&self) -> bool {
        self.trouble.load(Ordering::Relaxed) == CONFLICT
    }

    /// Whether the server found the data itself wanting (SQLSTATE classes 22 and 23).
    pub fn refused_data(&self) -> bool {
        self.trouble.load(Ordering::Relaxed) == DATA
    }

    /// Whether there is a connection left.
    pub fn is_broken(&self) -> bool {
        self.is_silent() || self.connection.client.is_closed()
    }

    /// Whether the server did not answer in time.
    pub fn is_silent(&self) -> bool {
        self.trouble.load(Ordering::Relaxed) == SILENT
    }

    /// Ends it, rolled back unless it was committed, and gives the connection back if it is good.
    pub async fn end(self) {
        let good = !self.is_silent() && (!self.is_open() || self.roll_back().await.is_ok());
        if good && !self.is_broken() && self.trouble.load(Ordering::Relaxed) != READ_ONLY {
            self.place.give_back(self.connection);
        }
    }

    fn failed(&self, error: tokio_postgres::Error) -> Error {
        if is_race(&error) {
            self.trouble.store(CONFLICT, Ordering::Relaxed);
        } else if is_about_data(&error) {
            self.trouble.store(DATA, Ordering::Relaxed);
        }
        let error = failed(error);
        if error.reason() == Some(Reason::ReadOnly) {
            self.trouble.store(READ_ONLY, Ordering::Relaxed);
            self.place.lead_nowhere();
        }
        error
    }
}

/// Whether it may go well when it is done again. Whoever brings a message that is there already
/// brings it again.
fn is_race(error: &tokio_postgres::Error) -> bool {
    let Some(state) = error.as_db_error() else { return false };
    let of_message = || state.table().is_some_and(|table| table.starts_with("message"));
    match *state.code() {
        SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => true,
        SqlState::UNIQUE_VIOLATION => !of_message(),
        _ => false,
    }
}

fn is_about_data(error: &tokio_postgres::Error) -> bool {
    let state = error.as_db_error().map(|state| state.code().code());
    state.is_some_and(|code| code.starts_with("22") || code.starts_with("23"))
}

/// Any column as its bytes and type.
struct Raw<'r>(&'r [u8], Type);

impl<'r> FromSql<'r> for Raw<'r> {
    fn from_sql(
        kind: &Type,
        bytes: &'r [u8],
    ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(bytes, kind.clone()))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

fn raw(row: &tokio_postgres::Row, column: usize) -> Result<Option<Raw<'_>>> {
    row.try_get(column).map_err(failed)
}

impl Row for tokio_postgres::Row {
    fn int(&self, column: usize) -> Result<Option<i64>> {
        let Some(Raw(bytes, _)) = raw(self, column)? else { return Ok(None) };
        let number = match *bytes {
            [a] => i64::from(a),
            [a, b] => i64::from(i16::from_be_bytes([a, b])),
            [a, b, c, d] => i64::from(i32::from_be_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] => i64::from_be_bytes([a, b, c, d, e, f, g, h]),
            _ => return Err(mistyped(column)),
        };
        Ok(Some(number))
    }

    fn text(&self, column: usize) -> Result<Option<&str>> {
        let Some(Raw(bytes, _)) = raw(self, column)? else { return Ok(None) };
        std::str::from_utf8(bytes).map(Some).map_err(|_| mistyped(column))
    }

    fn blob(&self, column: usize) -> Result<Option<&[u8]>> {
        match raw(self, column)? {
            None => Ok(None),
            Some(Raw(bytes, Type::BYTEA | Type::UUID)) => Ok(Some(bytes)),
            Some(_) => Err(mistyped(column)),
        }
    }
}

fn mistyped(column: usize) -> Error {
    Error::new(Kind::Internal, format!("stored data: column {column} has another type"))
}

/// What PostgreSQL's refusal means for the caller. Only the code and the message that the server
/// gives are kept: its details may hold values.
pub(super) fn failed(error: tokio_postgres::Error) -> Error {
    let Some(state) = error.as_db_error() else { return unreached(&error) };
    let code = state.code();
    let (kind, reason, context) = match code.code() {
        "57P01" | "57P02" | "57P03" => {
            (Kind::Unavailable, Some(Reason::Starting), "the database is starting or stopping")
        }
        "57014" => (Kind::Unavailable, Some(Reason::Slow), "the database took too long"),
        "55P03" => {
            let context = "the database kept a row or table locked for too long";
            (Kind::Unavailable, Some(Reason::Locked), context)
        }
        "53100" => (Kind::Unavailable, Some(Reason::DiskFull), "the database's disk is full"),
        "53300" => {
            let context = "the database takes no more connections";
            (Kind::Unavailable, Some(Reason::Connections), context)
        }
        "55000" => (Kind::Unavailable, Some(Reason::Refused), "the database lets nobody in now"),
        "25006" => {
            let context = "the database takes no writes now; it may be a standby";
            (Kind::Unavailable, Some(Reason::ReadOnly), context)
        }
        "40001" | "40P01" => (Kind::Unavailable, None, "too many changed the same rows at once"),
        "28000" | "28P01" => {
            (Kind::Unusable, Some(Reason::Refused), "the database refuses user or password")
        }
        "3D000" => (Kind::Unusable, Some(Reason::Refused), "there is no such database"),
        "42501" => (Kind::Unusable, Some(Reason::Refused), "the database's user may not do that"),
        code if code.starts_with("08") => {
            (Kind::Unavailable, Some(Reason::Unreachable), "the database cannot serve now")
        }
        code if code.starts_with("53") || code.starts_with("57") => {
            (Kind::Unavailable, Some(Reason::Failing), "the database cannot serve now")
        }
        code if code.starts_with("58") => {
            (Kind::Unavailable, Some(Reason::Failing), "the database's system failed")
        }
        code if code.starts_with("XX") => {
            (Kind::Unusable, Some(Reason::Failing), "the database reports damage")
        }
        _ => (Kind::Internal, None, "the database refused a statement"),
    };
    Error::new(kind, format!("{context} ({}: {})", code.code(), state.message())).told(reason)
}

/// The server itself said nothing.
fn unreached(error: &tokio_postgres::Error) -> Error {
    let cause = std::error::Error::source(error);
    if !error.is_closed() && cause.is_none() {
        return Error::new(Kind::Internal, format!("the database cannot be reached: {error}"));
    }
    // Of several hosts, the last one that was tried is a standby.
    let system = cause.and_then(|cause| cause.downcast_ref::<std::io::Error>());
    if system.is_some_and(|system| system.to_string() == NO_WRITES) {
        return Error::unavailable(Reason::ReadOnly, "no host of the database takes writes now");
    }
    // What the system says, such as that nobody listens there; never what was sent.
    let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
    let text = format!("the database cannot be reached: {error}{cause}");
    Error::unavailable(Reason::Unreachable, text)
}

/// What the driver says of a host that does not take writes.
const NO_WRITES: &str = "database does not allow writes";
