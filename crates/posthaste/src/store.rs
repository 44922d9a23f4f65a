//! Opens the store that the configuration names.

use crate::config::Config;
use crate::failure::Failure;
use posthaste_core::time::Clock;
use posthaste_store::sqlite::{SqliteOptions, SqliteStore};
use posthaste_store::{Store, Upkeep};
use std::sync::Arc;

/// Opens it and brings it to this version.
///
/// # Errors
/// It cannot be opened, is of a newer version, or another program keeps it locked.
pub async fn open(config: &Config, clock: &dyn Clock) -> Result<Arc<dyn Store>, Failure> {
    sqlite(config, clock).await.map(|store| Arc::new(store) as Arc<dyn Store>)
}

/// Brings it to this version and closes it again.
///
/// # Errors
/// Those of `open`.
pub async fn migrate(config: &Config, clock: &dyn Clock) -> Result<(), Failure> {
    let store = sqlite(config, clock).await?;
    store.close().await.map_err(|error| Failure::new(error.to_string()))
}

async fn sqlite(config: &Config, clock: &dyn Clock) -> Result<SqliteStore, Failure> {
    let opened = SqliteStore::open(&config.database, SqliteOptions::default(), clock.now()).await;
    opened.map_err(|error| {
        let text = error.to_string();
        let way_out = match text.contains("locked") {
            true => "; end the program that holds it, such as a database browser or a backup",
            false => "",
        };
        Failure::new(format!("{text}{way_out}"))
    })
}
