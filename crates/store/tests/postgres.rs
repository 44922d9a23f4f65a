//! The conformance suite on PostgreSQL, and what is PostgreSQL's own.
//!
//! Each case has a database of its own, made from a template that was migrated once, and dropped at
//! its end.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test code")]

#[path = "common/database.rs"]
mod database;

use async_trait::async_trait;
use database::{Database, NOW, connect, server, url};
use posthaste_core::time::Timestamp;
use posthaste_store::conformance::{Faults, Ground};
use posthaste_store::{PostgresOptions, PostgresStore, Store};
use std::sync::Arc;
use tokio::sync::OnceCell;

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
        self.0.get_or_init(Database::new).await.open().await
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
    use posthaste_store::outbox::Accepted;
    use posthaste_store::{Error, History, Kind, Outbox, Upkeep};
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
        let client = database.client().await;
        let count = client.query_one("SELECT count(*) FROM posthaste.migration", &[]).await;
        assert_eq!(count.unwrap().get::<_, i64>(0), 2);
    }

    #[tokio::test]
    async fn a_database_from_a_newer_version() {
        let database = Database::new().await;
        let client = database.client().await;
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

    /// An accept that has seen its worker but not committed yet, when that worker leaves.
    #[tokio::test]
    async fn a_lease_given_to_a_worker_that_leaves_is_found() {
        let database = Database::new().await;
        let store = database.open().await;
        let world = World::on(store.clone());
        let worker = WorkerId::from_bytes([1; 16]);
        let (application, acceptance) = world.leased_acceptance(worker, "event-1").await;
        store.heartbeat(worker, NOW).await.unwrap();
        // Somebody else is about to take the event id, so the accept waits for what comes of it.
        let client = database.client().await;
        let take = format!(
            "BEGIN; INSERT INTO posthaste.event VALUES ('{}', 'event-1', gen_random_uuid())",
            hex(application.as_bytes())
        );
        client.batch_execute(&take).await.unwrap();
        let accept = tokio::spawn({
            let store = store.clone();
            async move { store.accept(acceptance).await }
        });
        let admin = connect(&server()).await;
        let waits = "SELECT count(*) FROM pg_stat_activity
                     WHERE datname = $1 AND wait_event_type = 'Lock'";
        while admin.query_one(waits, &[&database.name]).await.unwrap().get::<_, i64>(0) == 0 {
            tokio::task::yield_now().await;
        }
        store.retire(worker, NOW).await.unwrap();
        client.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(accept.await.unwrap().unwrap(), Accepted::Committed);
        let later = NOW.after(Duration::from_secs(60));
        assert_eq!(store.recover(later, NOW).await.unwrap(), 1);
    }

    /// What a restart of the server does to its connections.
    #[tokio::test]
    async fn connections_that_were_cut_are_made_anew() {
        let database = Database::new().await;
        let store = database.open().await;
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
        let client = database.client().await;
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
        let store = database.open().await;
        let client = database.client().await;
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
            hex(posthaste_core::id::MessageId::lower_bound(NOW.after(year)).as_bytes())
        );
        client.batch_execute(&insert).await.unwrap();
        store.prune(NOW.after(year)).await.unwrap();
        let kept = "SELECT count(*) FROM posthaste.message WHERE event_type = 'odd.clock'";
        assert_eq!(client.query_one(kept, &[]).await.unwrap().get::<_, i64>(0), 1);
    }

    /// More workers than are looked at, all of them heard of later than the one that died.
    #[tokio::test]
    async fn many_who_live_do_not_hide_one_who_died() {
        let database = Database::new().await;
        let store = database.open().await;
        let world = World::on(store.clone());
        world.leave_leased(WorkerId::from_bytes([1; 16]), 3).await;
        let later = NOW.after(Duration::from_secs(60));
        let others = format!(
            "INSERT INTO posthaste.worker (id, heartbeat_at)
             SELECT gen_random_uuid(), {} FROM generate_series(1, 1500)",
            later.as_micros()
        );
        database.client().await.batch_execute(&others).await.unwrap();
        let silent_since = later.before(Duration::from_secs(12));
        assert_eq!(store.recover(later, silent_since).await.unwrap(), 3);
    }

    /// Weeks that were never made: a clock was wrong, or nobody was there to make them.
    #[tokio::test]
    async fn what_lies_in_no_week_is_forgotten_too() {
        let database = Database::new().await;
        let store = database.open().await;
        let client = database.client().await;
        let long_ago = NOW.before(Duration::from_secs(365 * 86_400));
        let id = hex(posthaste_core::id::MessageId::lower_bound(long_ago).as_bytes());
        // Ids differ in their last eight digits.
        let ids = format!("('{}' || lpad(number::text, 8, '0'))::uuid", &id[..24]);
        let fill = format!(
            "INSERT INTO posthaste.message
                 (application_id, id, event_id, event_type, created_at, expires_at, payload)
             SELECT gen_random_uuid(), {ids}, number, 'odd.clock', 0, 0,
                 CASE WHEN number > 2490 THEN '\\x01'::bytea END
             FROM generate_series(1, 2500) AS number;
             INSERT INTO posthaste.event SELECT application_id, event_id, id
             FROM posthaste.message;
             INSERT INTO posthaste.attempt (message_id, id, endpoint_id, number, trigger,
                 started_at, url, body_cut, total, verdict)
             SELECT {ids}, {ids}, gen_random_uuid(), 1, 0, 0, '', false, 1, ''
             FROM generate_series(1, 3000) AS number;
             INSERT INTO posthaste.ended (endpoint_id, message_id, application_id, state, attempts,
                 lease_number, accepted_at, ended_at)
             SELECT gen_random_uuid(), {ids}, gen_random_uuid(), 3, 1, 1, 0, 0
             FROM generate_series(1, 3000) AS number"
        );
        client.batch_execute(&fill).await.unwrap();
        assert_eq!(store.forget(long_ago).await.unwrap(), 0);
        assert_eq!(store.forget(NOW).await.unwrap(), 2_490);
        // Those with a payload stay, and what belongs to them; what belonged to nobody went too.
        for table in ["message", "event", "attempt", "ended"] {
            let sql = format!("SELECT count(*) FROM posthaste.{table}");
            let count = client.query_one(&sql, &[]).await;
            assert_eq!(count.unwrap().get::<_, i64>(0), 10, "{table}");
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[tokio::test]
    async fn old_snapshots_and_clocks_apart_are_warned_of() {
        let database = Database::new().await;
        let options =
            PostgresOptions { snapshot_age_max: Duration::ZERO, ..PostgresOptions::default() };
        let store = PostgresStore::open(&database.url(), options, NOW).await.unwrap();
        let now = || Timestamp::from_secs(since_1970().as_secs().cast_signed());
        // The server's clock is that of this machine.
        let well = store.diagnose(now()).await.unwrap();
        assert_eq!(well.warnings, []);
        assert!(well.clock_ahead_us.unwrap().abs() < 2_000_000, "{well:?}");
        assert_eq!(well.oldest_snapshot, Some(Duration::ZERO));
        let client = database.client().await;
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1";
        client.batch_execute(begin).await.unwrap();
        let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        // Its age is told in seconds.
        let found = loop {
            let found = store.diagnose(now()).await.unwrap();
            if !found.warnings.is_empty() {
                break found;
            }
        };
        assert_eq!(found.warnings[0].code, "old_snapshot");
        let text = &found.warnings[0].text;
        assert!(text.contains(&format!("backend {pid} ")), "{text}");
        client.batch_execute("COMMIT").await.unwrap();
        assert_eq!(store.diagnose(now()).await.unwrap().warnings, []);
        let early = store.diagnose(now().before(Duration::from_secs(10))).await.unwrap();
        assert_eq!(early.warnings[0].code, "clock_skew");
        assert!(early.warnings[0].text.contains("behind"), "{early:?}");
        // It is said, and nothing else comes of it.
        store.heartbeat(WorkerId::from_bytes([1; 16]), NOW).await.unwrap();
    }

    fn since_1970() -> Duration {
        std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap()
    }
}
