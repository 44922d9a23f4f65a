//! The product behind PgBouncer in transaction mode: each transaction may run on another
//! connection, and nothing of a session stays.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]

mod common;

use common::database::Database;
use common::facts::by_message;
use common::{PATIENCE, Setup};
use posthaste_testkit::{Receiver, Reply};
use serde_json::json;

const LISTENERS: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND query LIKE '%LISTEN%' AND pid <> pg_backend_pid()";

/// A database that is reached through the pooler.
fn pooled() -> Setup {
    let pooler = std::env::var("POSTHASTE_TEST_PGBOUNCER_URL").unwrap_or_else(|_| {
        panic!("POSTHASTE_TEST_PGBOUNCER_URL is not set: run `cargo xtask test -- NAME`")
    });
    let database = Database::on_postgres();
    let url = database.url().unwrap();
    let (_, name) = url.rsplit_once('/').unwrap();
    let (pooler, _) = pooler.rsplit_once('/').unwrap();
    let url = format!("{pooler}/{name}");
    Setup::on(database)
        .command(&["serve", "--dev", "--no-worker", "--listen", "127.0.0.1:0"])
        .with("POSTHASTE_DATABASE_URL", &url)
}

/// Several processes under some load, with failures and rate limits, and none of them notices.
#[tokio::test(flavor = "multi_thread")]
async fn everything_works_through_a_pooler() {
    const MESSAGES: usize = 200;
    let setup = pooled();
    let direct = setup.database().url().unwrap();
    let setup = setup.with("POSTHASTE_DATABASE_DIRECT_URL", &direct);
    let well = Receiver::always(Reply::ok()).await;
    let flaky = Receiver::in_order(vec![Reply::status(500), Reply::ok()]).await;
    let servers = [setup.start(), setup.start()];
    let workers = [setup.worker().start(), setup.worker().start()];
    let application = servers[0].application().await;
    servers[0].endpoint(&application, &well.url("/"), json!({})).await;
    servers[1].endpoint(&application, &flaky.url("/"), json!({})).await;
    for number in 0..MESSAGES {
        servers[number % 2].message(&application, "{}").await;
    }
    let enqueue = format!("SELECT posthaste.enqueue('{application}', 'a.b', '{{}}')");
    setup.database().sql(&enqueue);
    let all = 2 * (MESSAGES + 1);
    servers[0].status_until(|status| status["delivered_last_hour"] == all).await;
    assert_eq!(by_message(&well.requests()).len(), MESSAGES + 1);
    assert_eq!(well.requests().len(), MESSAGES + 1);
    // One connection of each worker, past the pooler.
    assert_eq!(setup.database().sql(LISTENERS), workers.len().to_string());
    for process in servers.iter().chain(&workers) {
        let odd = process.log().into_iter().find(|line| line.contains("_failed"));
        assert!(odd.is_none(), "{odd:?}");
    }
}

/// Nobody listens where it would be lost, and workers find what is due by themselves.
#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::disallowed_methods, reason = "waits for another process, with a bound")]
async fn without_a_direct_address_workers_look_for_themselves() {
    let setup = pooled();
    let receiver = Receiver::always(Reply::ok()).await;
    let server = setup.start();
    let worker = setup.worker().start();
    let since = std::time::Instant::now();
    while worker.events("store.no_listen_through_a_pooler").is_empty() {
        assert!(since.elapsed() < PATIENCE, "{:?}", worker.log());
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let application = server.application().await;
    server.endpoint(&application, &receiver.url("/"), json!({})).await;
    for number in 1..=3 {
        server.message(&application, "{}").await;
        receiver.wait_for(number).await;
    }
    assert_eq!(setup.database().sql(LISTENERS), "0");
}
