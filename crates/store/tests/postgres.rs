//! The conformance suite on PostgreSQL, and what is PostgreSQL's own.
//!
//! Each case has a database of its own, made from a template that was migrated once, and dropped at
//! its end.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test code")]

use async_trait::async_trait;
use posthaste_core::time::Timestamp;
use posthaste_store::conformance::{Faults, Ground};
use posthaste_store::{PostgresOptions, PostgresStore, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);
const URL_VARIABLE: &str = "POSTHASTE_TEST_POSTGRES_URL";

/// A database of one case.
struct Database {
    name: String,
}

static NUMBER: AtomicU32 = AtomicU32::new(0);
static TEMPLATE: OnceCell<String> = OnceCell::const_new();

/// The server that the tests use, as a superuser.
fn server() -> String {
    std::env::var(URL_VARIABLE).unwrap_or_else(|_| {
        panic!(
            "{URL_VARIABLE} is not set; `cargo xtask test` starts a server and sets it, or name \
             one of yours: {URL_VARIABLE}=postgres://user:password@127.0.0.1:5432/postgres"
        )
    })
}

/// The server's URL with another database.
fn url(database: &str) -> String {
    let mut url = url::Url::parse(&server()).unwrap();
    url.set_path(database);
    url.to_string()
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A migrated database that nobody is connected to.
async fn template() -> &'static str {
    let make = async || {
        let name = format!("posthaste_template_{}", std::process::id());
        let admin = connect(&server()).await;
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        let store = PostgresStore::open(&url(&name), PostgresOptions::default(), NOW).await;
        posthaste_store::Upkeep::close(&store.unwrap()).await.unwrap();
        // A database that is copied must have no other connection, and ours end a moment later.
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1";
        while admin.query_one(sql, &[&name]).await.unwrap().get::<_, i64>(0) > 0 {
            tokio::task::yield_now().await;
        }
        name
    };
    TEMPLATE.get_or_init(make).await
}

impl Database {
    async fn new() -> Self {
        let template = template().await;
        let number = NUMBER.fetch_add(1, Ordering::SeqCst);
        let name = format!("posthaste_case_{}_{number}", std::process::id());
        let admin = connect(&server()).await;
        // One copy at a time: the server refuses while another copies the same template.
        admin.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
        let copy = format!("CREATE DATABASE {name} TEMPLATE {template}");
        admin.batch_execute(&copy).await.unwrap();
        Self { name }
    }

    fn url(&self) -> String {
        url(&self.name)
    }

    async fn postgres(&self) -> Arc<PostgresStore> {
        let options = PostgresOptions { connections_max: 4, ..PostgresOptions::default() };
        Arc::new(PostgresStore::open(&self.url(), options, NOW).await.unwrap())
    }
}

impl Drop for Database {
    /// Also when the case failed: databases are many and the disk is not.
    fn drop(&mut self) {
        let name = self.name.clone();
        let drop = async move {
            let admin = connect(&server()).await;
            let sql = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
            let _ = admin.batch_execute(&sql).await;
        };
        let on_its_own = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(drop);
        });
        let _ = on_its_own.join();
    }
}

struct Disk(Arc<PostgresStore>);

impl Faults for Disk {
    fn fail_commits(&self, count: u32) {
        self.0.fail_commits(count);
    }
}

/// Made when the case first opens it.
struct Case(OnceCell<Database>);

impl Case {
    fn new() -> Self {
        Self(OnceCell::new())
    }

    async fn postgres(&self) -> Arc<PostgresStore> {
        self.0.get_or_init(Database::new).await.postgres().await
    }
}

#[async_trait]
impl Ground for Case {
    async fn open(&self) -> Arc<dyn Store> {
        self.postgres().await
    }

    async fn open_faulty(&self) -> (Arc<dyn Store>, Arc<dyn Faults>) {
        let store = self.postgres().await;
        (store.clone(), Arc::new(Disk(store)))
    }
}

posthaste_store::conformance_tests!(Case::new());

#[path = "postgres/nudges.rs"]
mod nudges;

mod own {
    use super::*;
    use posthaste_core::id::WorkerId;
    use posthaste_store::conformance::World;
    use posthaste_store::{Error, History, Kind, Upkeep};
    use std::time::Duration;

    async fn refused(url: &str) -> Error {
        match PostgresStore::open(url, PostgresOptions::default(), NOW).await {
            Ok(_) => panic!("it must not open"),
            Err(error) => error,
        }
    }

    /// The text and everything behind it.
    fn words(error: &Error) -> String {
        format!("{error} {error:?}")
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn ten_processes_start_at_once_on_an_empty_database() {
        let name = format!("posthaste_case_{}_start", std::process::id());
        let admin = connect(&server()).await;
        admin.batch_execute(&format!("CREATE DATABASE {name} TEMPLATE template0")).await.unwrap();
        let database = Database { name };
        let mut starts = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let url = database.url();
            let options = PostgresOptions { connections_max: 2, ..PostgresOptions::default() };
            starts.spawn(async move { PostgresStore::open(&url, options, NOW).await });
        }
        while let Some(started) = starts.join_next().await {
            started.unwrap().unwrap();
        }
        let client = connect(&database.url()).await;
        let count = client.query_one("SELECT count(*) FROM posthaste.migration", &[]).await;
        assert_eq!(count.unwrap().get::<_, i64>(0), 2);
    }

    #[tokio::test]
    async fn a_database_from_a_newer_version() {
        let database = Database::new().await;
        let client = connect(&database.url()).await;
        let insert = "INSERT INTO posthaste.migration VALUES (99, 'x')";
        client.batch_execute(insert).await.unwrap();
        let error = refused(&database.url()).await;
        assert_eq!(error.kind(), Kind::Unusable);
        assert!(error.to_string().contains("newer version"), "{error}");
        client
            .batch_execute(
                "DELETE FROM posthaste.migration WHERE number = 99;
                 UPDATE posthaste.migration SET checksum = 'x'",
            )
            .await
            .unwrap();
        let error = refused(&database.url()).await;
        assert!(error.to_string().contains("another build"), "{error}");
    }

    #[tokio::test]
    async fn errors_keep_the_password_to_themselves() {
        let mut url = url::Url::parse(&server()).unwrap();
        url.set_password(Some("hunter2")).unwrap();
        let error = refused(url.as_str()).await;
        assert_eq!(error.kind(), Kind::Unusable);
        assert!(error.to_string().contains("refuses user or password"), "{error}");
        assert!(!words(&error).contains("hunter2"), "{error:?}");
        url.set_port(Some(1)).unwrap();
        let error = refused(url.as_str()).await;
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(!words(&error).contains("hunter2"), "{error:?}");
        let error = refused("postgres://me:hunter2@[::1").await;
        assert_eq!(error.kind(), Kind::Unusable);
        assert!(!words(&error).contains("hunter2"), "{error:?}");
        let options = PostgresOptions {
            direct_url: Some("postgres://me:hunter2@host/db".to_owned()),
            ..PostgresOptions::default()
        };
        assert!(!format!("{options:?}").contains("hunter2"));
    }

    #[tokio::test]
    async fn a_database_that_is_not_there() {
        let error = refused(&url("posthaste_nowhere")).await;
        assert_eq!(error.kind(), Kind::Unusable);
        assert!(error.to_string().contains("no such database"), "{error}");
    }

    /// What a restart of the server does to its connections.
    #[tokio::test]
    async fn connections_that_were_cut_are_made_anew() {
        let database = Database::new().await;
        let store = database.postgres().await;
        let world = World::on(store.clone());
        world.leave_leased(WorkerId::from_bytes([1; 16]), 5).await;
        let admin = connect(&server()).await;
        for _ in 0..3 {
            // Several at once, so that several are idle and all of them are dead.
            let (one, two, three) =
                tokio::join!(store.status(NOW), store.status(NOW), store.check());
            one.unwrap();
            two.unwrap();
            three.unwrap();
            let cut = "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
                       WHERE datname = $1";
            let cut = admin.query_one(cut, &[&database.name]).await.unwrap();
            assert!(cut.get::<_, i64>(0) >= 1);
            assert_eq!(store.status(NOW).await.unwrap().in_flight, 5);
        }
        let later = Timestamp::from_secs(1_700_000_100);
        assert_eq!(store.recover(later, later).await.unwrap(), 5);
    }

    #[tokio::test]
    async fn all_connections_busy_is_told_in_time() {
        let database = Database::new().await;
        let options = PostgresOptions {
            connections_max: 1,
            acquire_timeout: Duration::from_millis(50),
            ..PostgresOptions::default()
        };
        let store = PostgresStore::open(&database.url(), options, NOW).await.unwrap();
        let client = connect(&database.url()).await;
        client.batch_execute("BEGIN; LOCK TABLE posthaste.worker").await.unwrap();
        let heartbeat = store.heartbeat(WorkerId::from_bytes([1; 16]), NOW);
        let status = async {
            // Behind the heartbeat, which waits for the lock.
            tokio::task::yield_now().await;
            let error = store.status(NOW).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Unavailable);
            assert!(error.to_string().contains("busy"), "{error}");
            client.batch_execute("ROLLBACK").await.unwrap();
        };
        let (beaten, ()) = tokio::join!(heartbeat, status);
        beaten.unwrap();
    }

    #[tokio::test]
    async fn partitions_are_made_ahead() {
        let database = Database::new().await;
        let store = database.postgres().await;
        let client = connect(&database.url()).await;
        let weeks = async || {
            let sql = "SELECT count(*) FROM pg_inherits
                       WHERE inhparent = 'posthaste.message'::regclass";
            client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0)
        };
        let before = weeks().await;
        store.prune(NOW).await.unwrap();
        assert_eq!(weeks().await, before, "they were there");
        store.prune(NOW.after(Duration::from_secs(3 * 7 * 86_400))).await.unwrap();
        assert_eq!(weeks().await, before + 3);
        let world = World::on(store.clone());
        world.leave_leased(WorkerId::from_bytes([1; 16]), 3).await;
        let stray = client.query_one("SELECT count(*) FROM posthaste.message_default", &[]).await;
        assert_eq!(stray.unwrap().get::<_, i64>(0), 0);
        // A week whose messages are in the default partition already gets none, and no error.
        let year = Duration::from_secs(365 * 86_400);
        let insert = format!(
            "INSERT INTO posthaste.message
                 (application_id, id, event_type, created_at, expires_at)
             VALUES (gen_random_uuid(), '{}', 'odd.clock', 0, 0)",
            uuid_text(posthaste_core::id::MessageId::lower_bound(NOW.after(year)))
        );
        client.batch_execute(&insert).await.unwrap();
        store.prune(NOW.after(year)).await.unwrap();
        let kept = "SELECT count(*) FROM posthaste.message WHERE event_type = 'odd.clock'";
        assert_eq!(client.query_one(kept, &[]).await.unwrap().get::<_, i64>(0), 1);
    }

    fn uuid_text(id: posthaste_core::id::MessageId) -> String {
        id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
