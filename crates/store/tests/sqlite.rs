//! The conformance suite on SQLite, and what is SQLite's own.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test code")]

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

/// A case that nobody lists is a case that nobody runs.
#[test]
fn every_case_is_listed() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/conformance");
    let list = std::fs::read_to_string(folder.join("mod.rs")).unwrap();
    let mut cases = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let group = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let listed = list.split(&format!("ground; {group}:")).nth(1).unwrap_or_default();
        let listed = listed.split('}').next().unwrap_or_default();
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            let Some(rest) = line.strip_prefix("pub async fn ") else { continue };
            let name = rest.split('(').next().unwrap();
            let found = listed.split([',', ' ', '\n']).any(|listed| listed == name);
            assert!(found, "{group}::{name} is not listed");
            cases += 1;
        }
    }
    assert!(cases >= 80);
}

mod own {
    use super::*;
    use posthaste_core::endpoint::EventType;
    use posthaste_core::event::{EventTypeName, OrganisationId};
    use posthaste_store::{Catalog, Error, Kind, Upkeep};
    use rusqlite::Connection;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::time::Duration;

    async fn refused(path: &Path) -> Error {
        let options = SqliteOptions { busy_timeout: Duration::from_millis(20) };
        match SqliteStore::open(path, options, NOW).await {
            Ok(_) => panic!("it must not open"),
            Err(error) => error,
        }
    }

    #[tokio::test]
    async fn folder_and_files_are_the_owners_alone() {
        let folder = Folder::new();
        let _store = folder.sqlite().await;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(folder.path().parent().unwrap()), 0o700);
        for file in fs::read_dir(folder.path().parent().unwrap()).unwrap() {
            let path = file.unwrap().path();
            assert_eq!(mode(&path), 0o600, "{}", path.display());
        }
    }

    #[tokio::test]
    async fn settings_are_in_force() {
        let folder = Folder::new();
        drop(folder.sqlite().await);
        let connection = Connection::open(folder.path()).unwrap();
        let text = |sql| connection.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
        let number = |sql| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(text("PRAGMA journal_mode"), "wal");
        assert_eq!(text("PRAGMA integrity_check"), "ok");
        assert_eq!(number("PRAGMA page_size"), 4_096);
        assert_eq!(number("PRAGMA application_id"), 0x7068_7374);
    }

    /// Without a checkpoint the log would hold everything that was ever written.
    #[tokio::test]
    async fn the_log_does_not_grow_without_end() {
        let folder = Folder::new();
        let store = folder.sqlite().await;
        let schemas = format!("{{\"1\":\"{}\"}}", "x".repeat(60_000));
        for number in 0..2_000 {
            let event_type = EventType {
                organisation_id: OrganisationId::new("org_log").unwrap(),
                name: EventTypeName::new(&format!("type.{number}")).unwrap(),
                description: String::new(),
                archived: false,
                deprecated: false,
                schemas: Some(schemas.clone()),
                feature_flag: None,
                group_name: None,
                created_at: NOW,
                updated_at: NOW,
            };
            store.create_event_type(event_type).await.unwrap();
        }
        let log = fs::metadata(format!("{}-wal", folder.path().display())).unwrap().len();
        assert!(log < 64 << 20, "120 MB were written, and the log has {log} bytes");
    }

    /// What is old but keeps its payload stays, and must not be walked over every minute.
    #[tokio::test]
    async fn what_stays_is_not_looked_at_all_over_again() {
        let folder = Folder::new();
        let store = folder.sqlite().await;
        let connection = Connection::open(folder.path()).unwrap();
        connection
            .execute_batch(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 5000)
                 INSERT INTO message (application_id, id, event_type, payload, created_at,
                     expires_at)
                 SELECT zeroblob(16), CAST(printf('m%015d', i) AS BLOB), 'x',
                     iif(i < 5000, x'00', NULL), i, i FROM n",
            )
            .unwrap();
        // Each call looks at the first thousand, and at a thousand more than the one before.
        assert_eq!(store.forget(NOW).await.unwrap(), 0);
        connection.execute_batch("UPDATE message SET payload = NULL WHERE seq = 1").unwrap();
        let mut forgotten = Vec::new();
        for _ in 0..3 {
            forgotten.push(store.forget(NOW).await.unwrap());
        }
        assert_eq!(forgotten, [1, 0, 1]);
    }

    #[tokio::test]
    async fn a_file_where_the_folder_should_be() {
        let folder = Folder::new();
        fs::write(folder.0.path().join("data"), "x").unwrap();
        let error = refused(&folder.path()).await;
        assert_eq!(error.kind(), Kind::Unusable);
        assert!(error.to_string().contains("choose another"), "{error}");
    }

    #[tokio::test]
    async fn something_that_is_no_database() {
        let folder = Folder::new();
        fs::create_dir(folder.path().parent().unwrap()).unwrap();
        fs::write(folder.path(), "this is a letter, not a database\n".repeat(300)).unwrap();
        let error = refused(&folder.path()).await;
        assert_eq!(error.kind(), Kind::Unusable);
        assert!(error.to_string().contains("choose another data folder"), "{error}");
    }

    #[tokio::test]
    async fn a_database_of_another_program() {
        let folder = Folder::new();
        fs::create_dir(folder.path().parent().unwrap()).unwrap();
        let other = Connection::open(folder.path()).unwrap();
        other.execute_batch("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)").unwrap();
        let error = refused(&folder.path()).await;
        assert_eq!(error.kind(), Kind::Unusable);
        assert!(error.to_string().contains("another program"), "{error}");
        let kept: i64 = other.query_row("SELECT x FROM theirs", [], |row| row.get(0)).unwrap();
        assert_eq!(kept, 1);
    }

    #[tokio::test]
    async fn a_database_from_a_newer_version() {
        let folder = Folder::new();
        drop(folder.sqlite().await);
        let connection = Connection::open(folder.path()).unwrap();
        connection.execute("INSERT INTO migration VALUES (2, 'x')", []).unwrap();
        let error = refused(&folder.path()).await;
        assert_eq!(error.kind(), Kind::Unusable);
        assert!(error.to_string().contains("newer version"), "{error}");
        connection.execute("DELETE FROM migration WHERE number = 2", []).unwrap();
        connection.execute("UPDATE migration SET checksum = 'x'", []).unwrap();
        let error = refused(&folder.path()).await;
        assert!(error.to_string().contains("another build"), "{error}");
    }

    #[tokio::test]
    async fn a_database_that_stays_locked() {
        let folder = Folder::new();
        drop(folder.sqlite().await);
        let other = Connection::open(folder.path()).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let error = refused(&folder.path()).await;
        assert_eq!(error.kind(), Kind::Unusable);
        assert!(error.to_string().contains("another program"), "{error}");
        other.execute_batch("ROLLBACK").unwrap();
        folder.sqlite().await;
    }

    /// What happens after kill -9: the system lets go of the locks, nothing else is done.
    #[tokio::test]
    async fn f069_leases_of_a_killed_process_come_back_at_once() {
        use posthaste_core::id::WorkerId;
        use posthaste_store::conformance::World;
        let folder = Folder::new();
        let (killed, alive) = (folder.sqlite().await, folder.sqlite().await);
        let (killed_id, alive_id) = (WorkerId::from_bytes([1; 16]), WorkerId::from_bytes([2; 16]));
        let world = World::on(killed.clone());
        world.leave_leased(killed_id, 3).await;
        world.moved_to(alive.clone()).leave_leased(alive_id, 4).await;
        drop((world, killed));
        // Its heartbeat is fresh; the process is gone all the same.
        let again = folder.sqlite().await;
        let status = posthaste_store::History::status(&*again, NOW).await.unwrap();
        assert_eq!((status.awaiting_retry, status.in_flight), (3, 4));
        assert_eq!(status.workers, 1);
        drop(alive);
        let released = posthaste_store::Upkeep::recover(&*again, NOW, Timestamp::MIN).await;
        assert_eq!(released.unwrap(), 4);
        let locks = fs::read_dir(folder.path().parent().unwrap()).unwrap();
        let left = locks
            .filter(|file| file.as_ref().unwrap().file_name().to_string_lossy().ends_with(".lock"));
        assert_eq!(left.count(), 0, "the dead leave no files behind");
    }
}
