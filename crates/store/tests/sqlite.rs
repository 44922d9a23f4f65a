//! The conformance suite on SQLite, and what is SQLite's own.

use async_trait::async_trait;
use posthaste_core::time::Timestamp;
use posthaste_store::conformance::{Faults, Ground};
use posthaste_store::{SqliteOptions, SqliteStore, Store};
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("data").join("posthaste.db")
    }

    async fn sqlite(&self) -> Arc<SqliteStore> {
        let store = SqliteStore::open(&self.path(), SqliteOptions::default(), NOW).await;
        Arc::new(store.unwrap())
    }
}

struct Disk(Arc<SqliteStore>);

impl Faults for Disk {
    fn fail_commits(&self, count: u32) {
        self.0.fail_commits(count);
    }
}

#[async_trait]
impl Ground for Folder {
    async fn open(&self) -> Arc<dyn Store> {
        self.sqlite().await
    }

    async fn open_faulty(&self) -> (Arc<dyn Store>, Arc<dyn Faults>) {
        let store = self.sqlite().await;
        (store.clone(), Arc::new(Disk(store)))
    }
}

posthaste_store::conformance_tests!(Folder::new());
