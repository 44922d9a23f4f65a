//! `posthaste migrate --to`: from a data folder to PostgreSQL, also when it is killed on the way.

mod common;

use common::Setup;
use common::database::Database;
use common::facts::by_message;
use common::output::{complaint, ended, printed};
use posthaste_testkit::{Receiver, Reply};
use serde_json::json;
use std::process::Stdio;

const DELIVERED: usize = 5;
const OPEN: usize = 40;

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_was_killed_goes_on_and_delivers_what_was_open() {
    let receiver = Receiver::always(Reply::ok()).await;
    let source = Setup::new();
    let server = source.start();
    let application = server.application().await;
    let endpoint = server.endpoint(&application, &receiver.url("/"), json!({})).await;
    for _ in 0..DELIVERED {
        server.message(&application, "{}").await;
    }
    server.status_until(|status| status["delivered_last_hour"] == DELIVERED).await;
    server.kill();
    let api = ["serve", "--dev", "--no-worker", "--listen", "127.0.0.1:0"];
    let server = source.same_folder(&Setup::new().command(&api)).start();
    for _ in 0..OPEN {
        server.message(&application, "{\"open\": true}").await;
    }
    let path = format!("/api/v1/app/{application}/endpoint/{endpoint}/secret");
    let (_, secret) = server.api("GET", &path, json!(null)).await;

    let database = Database::on_postgres();
    let to = database.url().unwrap();
    let target = Setup::on(database);
    let copy = ["migrate", "--to", &to];
    let line = complaint(&ended(&source, &copy), 1);
    assert!(line.contains("in use"), "{line}");
    server.kill();

    // Killed while it waits to write attempts: messages are there, attempts are not.
    printed(&ended(&target, &["migrate"]));
    let mut holder = target.database().hold_table("posthaste.attempt");
    let mut killed = source.run(&copy);
    let mut killed = killed.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let waits = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND relation IS NOT NULL";
    target.database().sql_until(waits, "t");
    killed.kill().unwrap();
    killed.wait().unwrap();
    holder.kill().unwrap();
    holder.wait().unwrap();
    let held = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                AND pid <> pg_backend_pid() AND query LIKE '%pg_sleep%'";
    target.database().sql(&held.replace("count(*)", "pg_terminate_backend(pid)"));
    target.database().sql_until(held, "0");
    let line = complaint(&ended(&target, &["migrate"]), 1);
    assert!(line.contains("not whole"), "{line}");

    let report = printed(&ended(&source, &copy));
    for part in ["went on after", "message", "checksum", "database_url"] {
        assert!(report.contains(part), "`{part}` is not in: {report}");
    }
    let again = printed(&ended(&source, &copy));
    assert!(again.contains("finished before"), "{again}");

    let server = target.start();
    let all = DELIVERED + OPEN;
    server.status_until(|status| status["delivered_last_hour"] == all).await;
    let received = by_message(&receiver.requests());
    assert_eq!(received.len(), all);
    assert!(received.values().all(|times| *times == 1), "{received:?}");
    assert_eq!(server.api("GET", &path, json!(null)).await.1, secret);
}

#[test]
fn what_cannot_be_copied_is_one_clear_line() {
    let setup = Setup::new();
    let line = complaint(&ended(&setup, &["migrate", "--to", "mysql://h/d"]), 2);
    assert!(line.contains("--to") && line.contains("postgres://"), "{line}");
    let to = "postgres://user:hunter2@127.0.0.1:1/posthaste";
    let line = complaint(&ended(&setup, &["migrate", "--to", to]), 1);
    assert!(line.contains("no database") && !line.contains("hunter2"), "{line}");
    printed(&ended(&setup, &["migrate"]));
    let line = complaint(&ended(&setup, &["migrate", "--to", to]), 1);
    assert!(line.contains("cannot be reached") && !line.contains("hunter2"), "{line}");
    let other = setup.with("POSTHASTE_DATABASE_URL", "postgres://h/d");
    let line = complaint(&ended(&other, &["migrate", "--to", to]), 2);
    assert!(line.contains("SQLite"), "{line}");
}
