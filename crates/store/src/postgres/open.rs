//! Opens the database: how it is reached, its version, its schema.

use super::PostgresOptions;
use super::db::{Mode, Tx, failed, params};
use super::partitions::make_first_partitions;
use super::pool::{Connection, Pool};
use super::tls::{Asked, Tls};
use crate::Result;
use crate::error::{Error, Kind, Reason};
use crate::migrate::{Migration, pending};
use posthaste_core::time::Timestamp;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::{AsyncMessage, Config, Notification};

pub(super) const MIGRATIONS: &[Migration] = &[
    Migration { number: 1, sql: include_str!("../../sql/postgres/schema/0001_initial.sql") },
    Migration { number: 2, sql: include_str!("../../sql/postgres/schema/0002_enqueue.sql") },
];

/// The oldest server that has what the queries use.
const SERVER_VERSION_MIN: i64 = 140_000;
/// Under this number, processes that start at once migrate one after the other ("phst").
const MIGRATION_LOCK: i64 = 0x7068_7374;
/// How long to wait for the server when a connection is made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may be silent before the system asks whether the other end lives.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);

/// Where the server is and how it is spoken to.
pub(super) struct Target {
    config: Config,
    tls: Tls,
}

impl Target {
    /// # Errors
    /// `Unusable` when the text is no address of a PostgreSQL database. The text is not repeated:
    /// it may hold a password.
    pub fn parse(url: &str) -> Result<Self> {
        let asked = Asked::of(url)?;
        let mut config: Config = asked.url.parse().map_err(|_| {
            let text = "the database's address must look like \
                        postgres://user:password@host:5432/database";
            Error::new(Kind::Unusable, text)
        })?;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        // A server that vanished without a word is found out within half a minute.
        config.keepalives_idle(KEEPALIVE_EVERY);
        config.keepalives_interval(KEEPALIVE_EVERY / 2);
        config.keepalives_retries(3);
        if config.get_application_name().is_none() {
            config.application_name("posthaste");
        }
        config.ssl_mode(asked.mode);
        // Of several hosts, only one takes writes, and it is not the same one for ever.
        if config.get_hosts().len() > 1
            && config.get_target_session_attrs() == TargetSessionAttrs::Any
        {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        Ok(Self { config, tls: asked.connector()? })
    }

    pub async fn connect(&self) -> Result<Connection> {
        self.connect_and_hear(|_| {}).await
    }

    /// A connection whose notifications go to `hear`.
    pub async fn connect_and_hear(
        &self,
        mut hear: impl FnMut(&Notification) + Send + 'static,
    ) -> Result<Connection> {
        // The system bounds the way there; a server that hangs would keep the greeting for itself.
        let bound = self.config.get_connect_timeout().map_or(CONNECT_TIMEOUT, |bound| *bound * 2);
        let connected = tokio::time::timeout(bound, self.config.connect(self.tls.clone())).await;
        let silent = |_| Error::unavailable(Reason::Silent, "the database does not answer");
        let (client, mut connection) = connected.map_err(silent)?.map_err(failed)?;
        tokio::spawn(async move {
            loop {
                match poll_fn(|context| connection.poll_message(context)).await {
                    Some(Ok(AsyncMessage::Notification(notification))) => hear(&notification),
                    Some(Ok(_)) => {}
                    // Whoever uses the client learns of it from its own call.
                    Some(Err(error)) => {
                        return tracing::debug!(%error, "a connection to the database ended");
                    }
                    None => return,
                }
            }
        });
        Ok(Connection { client })
    }
}

/// Brings the schema up to date, one process after the other.
///
/// # Errors
/// `Unusable` when the server is too old, the schema is too new, or the user may not change it;
/// `Unavailable` when the server cannot be reached.
pub(super) async fn prepare(pool: &Arc<Pool>, now: Timestamp) -> Result<()> {
    let tx = pool.begin(Mode::Write).await?;
    let done = migrate(&tx, now).await;
    tx.end().await;
    done
}

async fn migrate(tx: &Tx, now: Timestamp) -> Result<()> {
    check_version(tx).await?;
    // Whoever came first may take its time.
    tx.take_time().await?;
    tx.one("SELECT pg_advisory_xact_lock($1)", params![MIGRATION_LOCK], |_| Ok(())).await?;
    tx.batch(
        "CREATE SCHEMA IF NOT EXISTS posthaste;
         CREATE TABLE IF NOT EXISTS posthaste.migration (
             number bigint NOT NULL PRIMARY KEY,
             checksum text NOT NULL
         );",
    )
    .await?;
    let sql = "SELECT number, checksum FROM posthaste.migration ORDER BY number";
    let applied = tx.all(sql, params![], |row| Ok((row.int()?, row.text()?.to_owned()))).await?;
    let pending = pending(MIGRATIONS, &applied)?;
    for migration in pending {
        tx.batch(migration.sql).await?;
        let sql = "INSERT INTO posthaste.migration (number, checksum) VALUES ($1, $2)";
        tx.run(sql, params![migration.number, migration.checksum()]).await?;
    }
    make_first_partitions(tx, now).await?;
    if !pending.is_empty() {
        analyze(tx).await?;
    }
    tx.commit().await
}

async fn check_version(tx: &Tx) -> Result<()> {
    let sql = "SELECT current_setting('server_version_num')::int8";
    new_enough(tx.get(sql, params![], |row| row.int()).await?)
}

fn new_enough(version: i64) -> Result<()> {
    if version >= SERVER_VERSION_MIN {
        return Ok(());
    }
    let text = format!(
        "the database's server is PostgreSQL {}; posthaste needs {} or newer",
        version / 10_000,
        SERVER_VERSION_MIN / 10_000
    );
    Err(Error::new(Kind::Unusable, text))
}

async fn analyze(tx: &Tx) -> Result<()> {
    let sql = "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables
               WHERE schemaname = 'posthaste'";
    for table in tx.all(sql, params![], |row| row.text().map(str::to_owned)).await? {
        tx.batch(&format!("ANALYZE {table}")).await?;
    }
    Ok(())
}

impl PostgresOptions {
    /// Where migrations run: past a pooler, if there is a way.
    pub(super) fn direct_target(&self, url: &str) -> Result<Target> {
        Target::parse(self.direct_url.as_deref().unwrap_or(url))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_server_is_told_by_its_name() {
        for version in [130_023, 90_624] {
            let error = new_enough(version).unwrap_err();
            assert_eq!(error.kind(), Kind::Unusable);
            let name = format!("PostgreSQL {};", version / 10_000);
            let text = error.to_string();
            assert!(text.contains(&name) && text.contains("14 or newer"), "{text}");
        }
        for version in [140_000, 150_013, 180_000] {
            new_enough(version).unwrap();
        }
    }
}
