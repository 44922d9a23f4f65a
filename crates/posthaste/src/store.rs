//! Opens the store that the configuration names; the only place that knows which one it is.

use crate::config::{Config, Database, DatabaseUrl};
use crate::failure::Failure;
use posthaste_core::time::Clock;
use posthaste_store::transfer::{Progress, Report, copy_to_postgres};
use posthaste_store::{
    Error, Kind, PostgresOptions, PostgresStore, SqliteOptions, SqliteStore, Store,
};
use std::path::Path;
use std::sync::Arc;

/// Opens it and brings it to this version.
///
/// # Errors
/// It cannot be reached or opened, is of a newer version, or another program keeps it locked.
pub async fn open(config: &Config, clock: &dyn Clock) -> Result<Arc<dyn Store>, Failure> {
    match &config.database {
        Database::Sqlite(path) => sqlite(path, clock).await,
        Database::Postgres(url) => postgres(url, config, clock).await,
    }
}

/// Brings it to this version and closes it again.
///
/// # Errors
/// Those of `open`.
pub async fn migrate(config: &Config, clock: &dyn Clock) -> Result<(), Failure> {
    let store = open(config, clock).await?;
    store.close().await.map_err(|error| Failure::new(error.to_string()))
}

/// Copies the SQLite database that the configuration names into the one at `to`.
///
/// # Errors
/// The configuration names another kind, somebody uses the source, the target has other data or
/// cannot be reached, or the two differ at the end.
pub async fn copy(config: &Config, to: &DatabaseUrl, clock: &dyn Clock) -> Result<Report, Failure> {
    let Database::Sqlite(path) = &config.database else {
        let text = "--to copies a SQLite database, but `database_url` names another; name the data \
                    folder with --data-dir, or unset POSTHASTE_DATABASE_URL";
        return Err(Failure::usage(text));
    };
    let options = PostgresOptions { connections_max: 2, ..PostgresOptions::default() };
    let mut shown: Option<&str> = None;
    let told = |progress| match progress {
        // One line a table: a large one may take its time.
        Progress::Copied { table, .. } if shown != Some(table) => {
            shown = Some(table);
            eprintln!("copying {table}");
        }
        Progress::Copied { .. } => {}
        Progress::Verified { table, .. } => eprintln!("verified {table}"),
    };
    let copied = copy_to_postgres(path, to.expose(), options, clock.now(), told).await;
    copied.map_err(|error| match error.kind() {
        Kind::Unavailable => {
            Failure::new(format!("{error}; run it again: the copy goes on where it ended ({to})"))
        }
        _ => Failure::new(format!("{error} (copying to {to})")),
    })
}

async fn sqlite(path: &Path, clock: &dyn Clock) -> Result<Arc<dyn Store>, Failure> {
    match SqliteStore::open(path, SqliteOptions::default(), clock.now()).await {
        Ok(store) => Ok(Arc::new(store)),
        Err(error) => {
            let text = error.to_string();
            let way_out = match text.contains("locked") {
                true => "; end the program that holds it, such as a database browser or a backup",
                false => "",
            };
            Err(Failure::new(format!("{text}{way_out}")))
        }
    }
}

async fn postgres(
    url: &DatabaseUrl,
    config: &Config,
    clock: &dyn Clock,
) -> Result<Arc<dyn Store>, Failure> {
    let options = PostgresOptions {
        connections_max: config.database_connections_max,
        direct_url: config.database_direct.as_ref().map(|url| url.expose().to_owned()),
        ..PostgresOptions::default()
    };
    match PostgresStore::open(url.expose(), options, clock.now()).await {
        Ok(store) => Ok(Arc::new(store)),
        Err(error) => {
            let way_out = way_out(&error);
            // Migrations go past the pooler, if there is a way.
            let place = config.database_direct.as_ref().unwrap_or(url);
            Err(Failure::new(format!("cannot use the database {place}: {error}{way_out}")))
        }
    }
}

/// What a person can do about it, as far as the error does not say so itself. The codes are
/// PostgreSQL's (its manual, appendix A).
fn way_out(error: &Error) -> &'static str {
    let text = error.to_string();
    let code = |code: &str| text.contains(code);
    if code("3D000") {
        "; make it with CREATE DATABASE, or correct database_url"
    } else if code("28P01") || code("28000") {
        "; correct user and password in database_url, or let that user in (pg_hba.conf)"
    } else if code("42501") {
        "; allow it with GRANT CREATE ON DATABASE … TO …, or let its owner run `posthaste migrate`"
    } else if error.kind() == Kind::Unavailable {
        "; see that the server runs and can be reached, or correct database_url"
    } else {
        ""
    }
}
