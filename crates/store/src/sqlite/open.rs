//! Opens the file: its folder, its settings, its schema.

use super::SqliteOptions;
use super::db::failed;
use crate::Result;
use crate::error::{Error, Kind};
use crate::migrate::{Migration, pending};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) const MIGRATIONS: &[Migration] =
    &[Migration { number: 1, sql: include_str!("../../sql/sqlite/schema/0001_initial.sql") }];

/// Marks the file as ours (`PRAGMA application_id`): "phst".
const APPLICATION_ID: i64 = 0x7068_7374;
const STATEMENTS_KEPT: usize = 256;
/// How long to sleep between two looks at a database that another process holds.
const BUSY_SLEEP: Duration = Duration::from_micros(500);

/// Set before the first table is made. A commit rewrites a leaf for each endpoint it touches, so
/// small pages write less; 4 KiB fits payloads of the usual size without overflow.
const PAGE_SIZE: &str = "PRAGMA page_size = 4096;";

/// The log is copied back by `checkpoint`. The page cache is small on purpose: SQLite walks all of
/// it in a commit that moved a page, and what it misses is in the system's cache.
const WRITER_SETTINGS: &str = "
    PRAGMA synchronous = FULL;
    PRAGMA wal_autocheckpoint = 0;
    PRAGMA journal_size_limit = 67108864;
    PRAGMA cache_size = -8192;
    PRAGMA temp_store = MEMORY;
    PRAGMA trusted_schema = OFF;
";
const COPIER_SETTINGS: &str = "
    PRAGMA synchronous = FULL;
    PRAGMA cache_size = -64;
";
const READER_SETTINGS: &str = "
    PRAGMA query_only = ON;
    PRAGMA cache_size = -4096;
    PRAGMA temp_store = MEMORY;
    PRAGMA trusted_schema = OFF;
";

/// The connections to one database.
pub(super) struct Opened {
    pub writing: Connection,
    pub copying: Connection,
    pub reading: Vec<Connection>,
}

/// Blocks.
pub(super) fn open(path: &Path, options: SqliteOptions, readers: usize) -> Result<Opened> {
    make_folder(path)?;
    make_file(path)?;
    let unusable = |error: Error| {
        let text = format!("the database {} cannot be used", path.display());
        Error::new(Kind::Unusable, text).because(error)
    };
    let read_write = OpenFlags::SQLITE_OPEN_READ_WRITE;
    let writing = connect(path, options, read_write).map_err(unusable)?;
    prepare(&writing).map_err(unusable)?;
    let copying = connect(path, options, read_write).map_err(unusable)?;
    copying.execute_batch(COPIER_SETTINGS).map_err(failed).map_err(unusable)?;
    let read_only = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let readers = (0..readers).map(|_| {
        let reader = connect(path, options, read_only)?;
        reader.execute_batch(READER_SETTINGS).map_err(failed)?;
        Ok(reader)
    });
    let reading = readers.collect::<Result<Vec<_>>>().map_err(unusable)?;
    Ok(Opened { writing, copying, reading })
}

fn connect(path: &Path, options: SqliteOptions, flags: OpenFlags) -> Result<Connection> {
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    let looks_max = options.busy_timeout.as_micros() / BUSY_SLEEP.as_micros();
    // Another process's lock sends no event. SQLite's own handler sleeps up to 100 ms between
    // looks, which starves a process whose neighbour commits all the time.
    let wait = move |looks: i32| {
        std::thread::park_timeout(BUSY_SLEEP);
        u128::try_from(looks).is_ok_and(|looks| looks < looks_max)
    };
    connection.busy_handler(Some(wait)).map_err(failed)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    // Plans do not depend on the values that are bound: otherwise SQLite prepares a statement anew
    // whenever they change, in the hope of a better plan.
    let stable = DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG;
    connection.set_db_config(stable, true).map_err(failed)?;
    Ok(connection)
}

/// Settings and schema.
fn prepare(connection: &Connection) -> Result<()> {
    connection.execute_batch(PAGE_SIZE).map_err(failed)?;
    check_ours(connection)?;
    let mode: String =
        connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(failed)?;
    if mode != "wal" {
        return Err(Error::new(
            Kind::Unusable,
            "its file system cannot share memory between processes (WAL); use a local disk",
        ));
    }
    connection.execute_batch(WRITER_SETTINGS).map_err(failed)?;
    connection.execute_batch("BEGIN IMMEDIATE").map_err(failed)?;
    match migrate(connection) {
        Ok(()) => connection.execute_batch("COMMIT").map_err(failed),
        Err(error) => {
            let _ = connection.execute_batch("ROLLBACK");
            Err(error)
        }
    }
}

/// A file with tables of somebody else is left alone.
fn check_ours(connection: &Connection) -> Result<()> {
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(failed)?;
    let owner: i64 =
        connection.query_row("PRAGMA application_id", [], |row| row.get(0)).map_err(failed)?;
    if tables > 0 && owner != APPLICATION_ID {
        return Err(Error::new(
            Kind::Unusable,
            "it is a database of another program; choose another data folder",
        ));
    }
    Ok(())
}

fn migrate(connection: &Connection) -> Result<()> {
    connection
        .execute_batch(&format!(
            "PRAGMA application_id = {APPLICATION_ID};
             CREATE TABLE IF NOT EXISTS migration (
                 number INTEGER NOT NULL PRIMARY KEY,
                 checksum TEXT NOT NULL
             ) STRICT;"
        ))
        .map_err(failed)?;
    let applied = {
        let sql = "SELECT number, checksum FROM migration ORDER BY number";
        let mut statement = connection.prepare(sql).map_err(failed)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).map_err(failed)?;
        rows.collect::<Result<Vec<(i64, String)>, _>>().map_err(failed)?
    };
    for migration in pending(MIGRATIONS, &applied)? {
        connection.execute_batch(migration.sql).map_err(failed)?;
        connection
            .execute(
                "INSERT INTO migration (number, checksum) VALUES (?1, ?2)",
                (migration.number, migration.checksum()),
            )
            .map_err(failed)?;
    }
    Ok(())
}

/// The folder is the owner's alone: the database holds secrets.
fn make_folder(path: &Path) -> Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(&folder).map_err(|error| {
        let text = format!(
            "the data folder {} cannot be made; choose another, or change who may write there",
            folder.display()
        );
        Error::new(Kind::Unusable, text).because(error)
    })
}

fn make_file(path: &Path) -> Result<()> {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop).map_err(|error| {
        let text = format!(
            "the database {} cannot be opened for writing; choose another data folder, or change \
             who may write there",
            path.display()
        );
        Error::new(Kind::Unusable, text).because(error)
    })
}
