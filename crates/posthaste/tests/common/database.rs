//! The database of a test: a file in its folder, or one of its own on the PostgreSQL server that
//! `cargo xtask test` starts.
//!
//! Some files have a twin whose name ends in `_postgres` and that holds the same cases: there, they
//! run on PostgreSQL.

use super::PATIENCE;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const ON_POSTGRES: &str = "_postgres";

pub struct Database {
    folder: TempDir,
    server: Option<OnServer>,
}

/// A database on the server; dropped with all who still use it.
pub struct OnServer {
    /// A superuser's way to the server.
    server: String,
    name: String,
}

/// While this lives, nobody can use the database, as if it were away.
pub enum Held<'a> {
    File(rusqlite::Connection),
    OnServer(&'a OnServer),
}

impl Database {
    /// An empty one, of the kind that this test binary is about.
    pub fn new() -> Self {
        match env!("CARGO_CRATE_NAME").ends_with(ON_POSTGRES) {
            true => Self::on_postgres(),
            false => Self { folder: tempfile::tempdir().unwrap(), server: None },
        }
    }

    pub fn on_postgres() -> Self {
        Self::on(server_url())
    }

    /// On a server of the test's own; a superuser's URL.
    pub fn on(server: String) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{}_{number}", std::process::id());
        psql(&server, &format!("CREATE DATABASE {name}"));
        Self { folder: tempfile::tempdir().unwrap(), server: Some(OnServer { server, name }) }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// With a password; `None`: it is a file.
    pub fn url(&self) -> Option<String> {
        self.server.as_ref().map(|it| sibling(&it.server, &it.name))
    }

    /// What PostgreSQL answers; only for a database there.
    pub fn sql(&self, text: &str) -> String {
        psql(&self.url().unwrap(), text)
    }

    /// Keeps everybody from writing to a table, until the process is killed.
    pub fn hold_table(&self, table: &str) -> Child {
        let url = self.url().unwrap();
        let text = format!("BEGIN; LOCK TABLE {table} IN SHARE MODE; SELECT pg_sleep(600)");
        let holder = psql_command(&url, &text).stdout(Stdio::null()).spawn().unwrap();
        let held = format!(
            "SELECT count(*) > 0 FROM pg_locks \
             WHERE granted AND mode = 'ShareLock' AND relation = '{table}'::regclass"
        );
        self.sql_until(&held, "t");
        holder
    }

    /// Asks until PostgreSQL answers this.
    pub fn sql_until(&self, text: &str, wanted: &str) {
        let since = Instant::now();
        while self.sql(text) != wanted {
            assert!(since.elapsed() < PATIENCE, "never `{wanted}`: {text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Takes the database away from everybody.
    pub fn hold(&self) -> Held<'_> {
        let Some(server) = &self.server else {
            let holder = self.connect();
            holder.execute_batch("BEGIN EXCLUSIVE").unwrap();
            return Held::File(holder);
        };
        server.allow(false);
        let name = &server.name;
        let others = format!("SELECT pid FROM pg_stat_activity WHERE datname = '{name}'");
        let end = format!("SELECT pg_terminate_backend(pid) FROM ({others}) AS other");
        psql(&server.server, &end);
        Held::OnServer(server)
    }

    /// Stops the test if a transaction is held open: one that nobody waits for.
    pub fn assert_free(&self) {
        if self.server.is_none() {
            return self.connect().execute_batch("BEGIN IMMEDIATE; ROLLBACK").unwrap();
        }
        let held = self.sql(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
             AND state LIKE 'idle in transaction%' AND state_change < now() - interval '1 s'",
        );
        assert_eq!(held, "0", "transactions are held open");
    }

    fn connect(&self) -> rusqlite::Connection {
        let connection = rusqlite::Connection::open(self.folder().join("posthaste.db")).unwrap();
        connection.busy_timeout(PATIENCE).unwrap();
        connection
    }
}

impl OnServer {
    fn allow(&self, allowed: bool) {
        let name = &self.name;
        psql(&self.server, &format!("ALTER DATABASE {name} ALLOW_CONNECTIONS {allowed}"));
    }
}

impl Drop for OnServer {
    fn drop(&mut self) {
        let text = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        // The server may be gone already; a test that failed says so itself.
        let _ = psql_command(&self.server, &text).output();
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        match self {
            Self::File(holder) => holder.execute_batch("ROLLBACK").unwrap(),
            Self::OnServer(server) => server.allow(true),
        }
    }
}

/// A superuser's way to the server.
pub fn server_url() -> String {
    variable("POSTHASTE_TEST_POSTGRES_URL")
}

/// The same server, another database.
pub fn url_of(database: &str) -> String {
    sibling(&server_url(), database)
}

fn sibling(url: &str, database: &str) -> String {
    let (server, _) = url.rsplit_once('/').unwrap();
    format!("{server}/{database}")
}

/// What `psql` prints.
pub fn psql(url: &str, text: &str) -> String {
    let output = psql_command(url, text).output().unwrap();
    assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// One of PostgreSQL's programs.
pub fn program(name: &str) -> PathBuf {
    PathBuf::from(variable("POSTHASTE_TEST_POSTGRES_BIN")).join(name)
}

fn psql_command(url: &str, text: &str) -> Command {
    let mut command = Command::new(program("psql"));
    command.args(["-X", "-q", "-w", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", text, url]);
    command
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run `cargo xtask test -- NAME`, which starts PostgreSQL")
    })
}
