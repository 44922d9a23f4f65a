//! What several test files share: databases of their own, and what two stores hold in one form.

pub mod database;
pub mod dump;

pub use database::{Database, NOW};
use posthaste_store::{SqliteOptions, SqliteStore};
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

/// A data folder.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> PathBuf {
        self.0.path().join("data").join("posthaste.db")
    }

    pub async fn open(&self) -> Arc<SqliteStore> {
        let store = SqliteStore::open(&self.path(), SqliteOptions::default(), NOW).await;
        Arc::new(store.unwrap())
    }
}
