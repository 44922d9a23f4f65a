//! A copy of a SQLite data folder in PostgreSQL holds the same, whenever it was cut off.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test code")]

mod common;

#[path = "twins/apply.rs"]
mod apply;
#[path = "twins/operation.rs"]
mod operation;
#[path = "twins/pair.rs"]
mod pair;
#[path = "twins/reads.rs"]
mod reads;

use common::dump::{self, difference};
use common::{Database, Folder, NOW};
use operation::{Accept, Operation};
use pair::{Pair, rules};
use posthaste_core::id::WorkerId;
use posthaste_core::time::Timestamp;
use posthaste_store::conformance::World;
use posthaste_store::outbox::Claim;
use posthaste_store::transfer::{Progress, Report, copy_to_postgres};
use posthaste_store::{Error, History, Kind, Outbox, PostgresOptions, PostgresStore, Upkeep};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::Notify;

/// More messages than a page has rows, in one table.
const MORE_MESSAGES: u32 = 9_000;

async fn copy(source: &Path, target: &Database) -> Result<Report, Error> {
    let options = PostgresOptions { connections_max: 2, ..PostgresOptions::default() };
    copy_to_postgres(source, &target.url(), options, NOW, |_| {}).await
}

/// A folder as a killed process leaves it, with some of everything in it.
async fn some_of_everything(into: &Folder) -> (PathBuf, Pair) {
    let mut pair = Pair::new().await;
    let mut runner = TestRunner::deterministic();
    for _ in 0..6 {
        for operation in operation::sequence().new_tree(&mut runner).unwrap().current() {
            pair.run(&operation).await.unwrap();
        }
    }
    // And something that is open in several states, whatever became of all that.
    pair.run(&Operation::CreateApplication { uid: None, rate: Some(30) }).await.unwrap();
    let application = u8::try_from(pair.applications.len() - 1).unwrap();
    let endpoint = u8::try_from(pair.endpoints.len()).unwrap();
    let create =
        Operation::CreateEndpoint { application, uid: None, rate: Some(9), disabled: false };
    let accept = Accept {
        application,
        event_id: Some(1),
        key: None,
        lease: None,
        old_routes: false,
        short: false,
        channel: true,
    };
    let unnamed = Operation::Accept(Accept { event_id: None, ..accept.clone() });
    let claim = Operation::Claim { worker: 1, deliveries_max: 9, lane_max: 9, full: None };
    let record =
        Operation::Record { attempts: vec![5, 8, 0], again: false, sketch: Some(endpoint) };
    for operation in [
        &create,
        &create,
        &Operation::Accept(accept),
        &unnamed,
        &claim,
        &record,
        &unnamed,
        &Operation::Toggle(endpoint),
        &Operation::Steps,
    ] {
        pair.run(operation).await.unwrap();
    }
    // What is under lease has a test of its own.
    pair.run(&Operation::Pass(4)).await.unwrap();
    pair.run(&Operation::Recover { silent: true }).await.unwrap();
    let more = format!(
        "WITH RECURSIVE number (n) AS (
             SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < {MORE_MESSAGES})
         INSERT INTO message
             (application_id, id, event_type, payload, created_at, expires_at)
         SELECT (SELECT id FROM application LIMIT 1),
             unhex(format('018bcfe56800700080000000%08x', n)), 'order.paid', randomblob(200), n, n
         FROM number"
    );
    rusqlite::Connection::open(pair.path()).unwrap().execute_batch(&more).unwrap();
    let path = into.path();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    for suffix in ["", "-wal"] {
        let named = |path: &Path| PathBuf::from(format!("{}{suffix}", path.display()));
        fs::copy(named(&pair.path()), named(&path)).unwrap();
    }
    (path, pair)
}

async fn assert_same(source: &Path, target: &Database) {
    let ours = dump::of_sqlite(source, i64::MAX);
    let theirs = dump::of_postgres(&target.client().await, i64::MAX).await;
    for table in ["lane", "delivery", "ended", "attempt", "tally", "task", "idempotency", "event"] {
        assert!(!ours[table].is_empty(), "nothing in {table}");
    }
    assert_eq!(difference(&ours, &theirs), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_is_cut_off_goes_on_and_holds_the_same() {
    let (folder, target) = (Folder::new(), Database::new().await);
    let (source, mut pair) = some_of_everything(&folder).await;
    let files = || {
        let mut files: Vec<_> = fs::read_dir(source.parent().unwrap())
            .unwrap()
            .map(|file| file.unwrap().path())
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect();
        files.sort();
        files
    };
    let before = files();
    let options = PostgresOptions { connections_max: 2, ..PostgresOptions::default() };
    let (url, mut rows_before) = (target.url(), 0);
    // Cut off at each page of the large table.
    for _ in 0..3 {
        let page = Notify::new();
        let told = |progress| {
            if matches!(progress, Progress::Copied { table: "message", .. }) {
                page.notify_one();
            }
        };
        tokio::select! {
            biased;
            () = page.notified() => {}
            done = copy_to_postgres(&source, &url, options.clone(), NOW, told) => {
                panic!("it was not cut off: {done:?}");
            }
        }
        let client = target.client().await;
        let sql = "SELECT rows FROM posthaste.transfer WHERE name = 'message'";
        let rows: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
        assert!(rows > rows_before, "{rows} rows are there, {rows_before} were");
        rows_before = rows;
        let refused = PostgresStore::open(&target.url(), options.clone(), NOW).await;
        let refused = refused.err().unwrap();
        assert_eq!(refused.kind(), Kind::Unusable);
        assert!(refused.to_string().contains("not whole"), "{refused}");
    }
    let report = copy(&source, &target).await.unwrap();
    assert!(report.rows_before >= rows_before.cast_unsigned(), "{report:?}");
    let of = |name| report.tables.iter().find(|table| table.table == name).unwrap().sum.rows;
    assert!(of("message") > u64::from(MORE_MESSAGES) && of("attempt") > 0, "{report:?}");
    assert_eq!(files(), before, "the source changed");
    assert_same(&source, &target).await;
    // Partitions were made for the history before it came.
    let stray = "SELECT count(*) FROM posthaste.message_default";
    assert_eq!(target.client().await.query_one(stray, &[]).await.unwrap().get::<_, i64>(0), 0);
    assert!(copy(&source, &target).await.unwrap().finished_before);
    // And so do the traits.
    (pair.sqlite, pair.postgres) = (folder.open().await, target.open().await);
    pair.read_all().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_under_lease_becomes_due() {
    let (folder, target) = (Folder::new(), Database::new().await);
    let store = folder.open().await;
    World::on(store.clone()).leave_leased(WorkerId::from_bytes([1; 16]), 5).await;
    store.close().await.unwrap();
    copy(&folder.path(), &target).await.unwrap();
    let store = target.open().await;
    let now = Timestamp::from_secs(1_700_000_120);
    let status = store.status(now).await.unwrap();
    assert_eq!((status.in_flight, status.awaiting_retry), (0, 5));
    let claim = Claim {
        worker_id: WorkerId::from_bytes([2; 16]),
        now,
        lease_for: Duration::from_secs(30),
        deliveries_max: 10,
        lane_max: 10,
        full: Vec::new(),
        rules: rules(),
    };
    let claimed = store.claim(claim).await.unwrap();
    let leased: Vec<_> = claimed.lanes.iter().flat_map(|lane| &lane.deliveries).collect();
    assert_eq!(leased.len(), 5);
    assert!(leased.iter().all(|(leased, _)| leased.lease.number == 2 && leased.attempt == 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_refused_while_the_source_is_used() {
    let (folder, target) = (Folder::new(), Database::new().await);
    let store = folder.open().await;
    let refused = copy(&folder.path(), &target).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Unusable);
    assert!(refused.to_string().contains("in use"), "{refused}");
    store.close().await.unwrap();
    drop(store);
    copy(&folder.path(), &target).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_with_other_data_is_left_alone() {
    let (folder, target) = (Folder::new(), Database::new().await);
    let store = folder.open().await;
    World::on(store.clone()).leave_leased(WorkerId::from_bytes([1; 16]), 1).await;
    store.close().await.unwrap();
    let other = target.open().await;
    World::on(other.clone()).leave_leased(WorkerId::from_bytes([1; 16]), 2).await;
    let refused = copy(&folder.path(), &target).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Unusable);
    assert!(refused.to_string().contains("other data"), "{refused}");
    assert_eq!(other.status(NOW).await.unwrap().in_flight, 2);
    target.open().await.check().await.unwrap();
}

/// A copy that was begun is not finished from a folder that went on meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_was_used_since_is_told() {
    let (folder, target) = (Folder::new(), Database::new().await);
    let store = folder.open().await;
    let world = World::on(store.clone());
    world.leave_leased(WorkerId::from_bytes([1; 16]), 1).await;
    store.close().await.unwrap();
    copy(&folder.path(), &target).await.unwrap();
    let begun = "UPDATE posthaste.transfer SET finished = false WHERE name = ''";
    target.client().await.batch_execute(begun).await.unwrap();
    let store = folder.open().await;
    world.moved_to(store.clone()).leave_leased(WorkerId::from_bytes([1; 16]), 1).await;
    store.close().await.unwrap();
    let refused = copy(&folder.path(), &target).await.unwrap_err();
    assert!(refused.to_string().contains("used since"), "{refused}");
}

/// What was changed behind the copy's back is found at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_difference_is_found_at_the_end() {
    let (folder, target) = (Folder::new(), Database::new().await);
    let store = folder.open().await;
    World::on(store.clone()).leave_leased(WorkerId::from_bytes([1; 16]), 3).await;
    store.close().await.unwrap();
    copy(&folder.path(), &target).await.unwrap();
    let client = target.client().await;
    for damage in [
        "UPDATE posthaste.message SET payload = payload || '\\x00'",
        "DELETE FROM posthaste.delivery",
    ] {
        let begun = "UPDATE posthaste.transfer SET finished = false WHERE name = ''";
        client.batch_execute(&format!("{begun}; {damage}")).await.unwrap();
        let refused = copy(&folder.path(), &target).await.unwrap_err();
        assert!(refused.to_string().contains("differs"), "{refused}");
    }
}
