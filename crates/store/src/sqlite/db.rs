//! A connection as the groups use it: prepared statements, rows as `Fields`, errors as ours.

use crate::Result;
use crate::error::{Error, Kind, Reason};
use crate::rows::{Fields, Row};
use rusqlite::types::ValueRef;
use rusqlite::{CachedStatement, Connection, ErrorCode, Params, Statement};
use std::cell::RefCell;

/// A borrowed connection. Every statement is prepared once and kept with the connection; those of
/// one transaction are also kept at hand, because finding one by its text takes a good part of the
/// time that a small one runs.
pub(super) struct Db<'c> {
    connection: &'c Connection,
    at_hand: RefCell<Vec<(&'static str, CachedStatement<'c>)>>,
}

impl<'c> Db<'c> {
    pub fn new(connection: &'c Connection) -> Self {
        Self { connection, at_hand: RefCell::default() }
    }

    /// Has `work` do something with a statement that nobody else uses meanwhile.
    fn with<T>(
        &self,
        sql: &'static str,
        work: impl FnOnce(&mut Statement<'_>) -> Result<T>,
    ) -> Result<T> {
        let at = |kept: &(&'static str, CachedStatement<'_>)| std::ptr::eq(kept.0, sql);
        let found = {
            let mut at_hand = self.at_hand.borrow_mut();
            at_hand.iter().position(at).map(|index| at_hand.swap_remove(index).1)
        };
        let mut statement = match found {
            Some(statement) => statement,
            None => self.connection.prepare_cached(sql).map_err(failed)?,
        };
        let done = work(&mut statement);
        self.at_hand.borrow_mut().push((sql, statement));
        done
    }

    /// The `seq` of the row that was appended last.
    pub fn last_seq(&self) -> i64 {
        self.connection.last_insert_rowid()
    }

    /// Runs a statement; returns how many rows it changed.
    pub fn run(&self, sql: &'static str, params: impl Params) -> Result<usize> {
        self.with(sql, |statement| statement.execute(params).map_err(failed))
    }

    /// The first row, if there is one.
    pub fn one<T>(
        &self,
        sql: &'static str,
        params: impl Params,
        read: impl FnOnce(&mut Fields<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        self.with(sql, |statement| {
            let mut rows = statement.query(params).map_err(failed)?;
            match rows.next().map_err(failed)? {
                Some(row) => read(&mut Fields::new(row)).map(Some),
                None => Ok(None),
            }
        })
    }

    /// The first row of a query that always has one.
    pub fn get<T>(
        &self,
        sql: &'static str,
        params: impl Params,
        read: impl FnOnce(&mut Fields<'_>) -> Result<T>,
    ) -> Result<T> {
        self.one(sql, params, read)?
            .ok_or_else(|| Error::new(Kind::Internal, "a query that has one row had none"))
    }

    /// All rows; the query bounds them.
    pub fn all<T>(
        &self,
        sql: &'static str,
        params: impl Params,
        mut read: impl FnMut(&mut Fields<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut items = Vec::new();
        self.each(sql, params, |row| {
            items.push(read(row)?);
            Ok(true)
        })?;
        Ok(items)
    }

    /// Row after row, until `read` says `false`.
    pub fn each(
        &self,
        sql: &'static str,
        params: impl Params,
        mut read: impl FnMut(&mut Fields<'_>) -> Result<bool>,
    ) -> Result<()> {
        self.with(sql, |statement| {
            let mut rows = statement.query(params).map_err(failed)?;
            while let Some(row) = rows.next().map_err(failed)? {
                if !read(&mut Fields::new(row))? {
                    break;
                }
            }
            Ok(())
        })
    }
}

impl Row for rusqlite::Row<'_> {
    fn int(&self, column: usize) -> Result<Option<i64>> {
        match self.get_ref(column).map_err(failed)? {
            ValueRef::Null => Ok(None),
            ValueRef::Integer(value) => Ok(Some(value)),
            _ => Err(mistyped(column)),
        }
    }

    fn text(&self, column: usize) -> Result<Option<&str>> {
        match self.get_ref(column).map_err(failed)? {
            ValueRef::Null => Ok(None),
            value => value.as_str().map(Some).map_err(|_| mistyped(column)),
        }
    }

    fn blob(&self, column: usize) -> Result<Option<&[u8]>> {
        match self.get_ref(column).map_err(failed)? {
            ValueRef::Null => Ok(None),
            ValueRef::Blob(bytes) => Ok(Some(bytes)),
            _ => Err(mistyped(column)),
        }
    }
}

fn mistyped(column: usize) -> Error {
    Error::new(Kind::Internal, format!("stored data: column {column} has another type"))
}

/// What SQLite's refusal means for the caller. Its texts name tables and columns, never values.
pub(super) fn failed(error: rusqlite::Error) -> Error {
    let code = error.sqlite_error_code();
    let (kind, context) = match code {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (Kind::Unavailable, "another program kept the database locked for too long")
        }
        Some(ErrorCode::DiskFull) => (Kind::Unavailable, "the disk is full"),
        Some(ErrorCode::SystemIoFailure) => {
            (Kind::Unavailable, "the database cannot be read or written")
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            (Kind::Unusable, "the database cannot be opened for writing; check its permissions")
        }
        Some(ErrorCode::NotADatabase) => (
            Kind::Unusable,
            "the file is not a database of posthaste; move it away, or choose another data folder",
        ),
        Some(ErrorCode::DatabaseCorrupt) => {
            (Kind::Unusable, "the database is damaged; restore a copy of it")
        }
        _ => (Kind::Internal, "the database refused a statement"),
    };
    let reason = match code {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Some(Reason::Locked),
        Some(ErrorCode::DiskFull) => Some(Reason::DiskFull),
        Some(ErrorCode::SystemIoFailure) => Some(Reason::Failing),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            Some(Reason::ReadOnly)
        }
        _ => None,
    };
    Error::new(kind, context).because(error).told(reason)
}
