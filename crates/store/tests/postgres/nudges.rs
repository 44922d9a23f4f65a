//! Nudges between processes: they arrive, they are few, and who hears them comes back.

use super::*;
use posthaste_store::Upkeep;
use std::time::Duration;
use tokio_postgres::NoTls;

/// Nothing here polls: what does not arrive by itself fails the test.
const PATIENCE: Duration = Duration::from_secs(30);
const LISTENERS: &str = "FROM pg_stat_activity
    WHERE datname = $1 AND (query LIKE 'LISTEN%' OR query LIKE '%pg_backend_pid%')
        AND backend_xmin IS NULL AND pid <> pg_backend_pid()";

async fn nudged(store: &PostgresStore) {
    tokio::time::timeout(PATIENCE, store.nudged()).await.expect("a nudge");
}

/// A store that listens.
async fn listening(database: &Database) -> PostgresStore {
    let options = PostgresOptions {
        connections_max: 4,
        listen_check_every: Duration::from_millis(50),
        ..PostgresOptions::default()
    };
    let store = PostgresStore::open(&database.url(), options, NOW).await.unwrap();
    // The first is its own: something may have been said before it listened.
    nudged(&store).await;
    store
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nudge_reaches_every_other_process() {
    let database = Database::new().await;
    let (one, two) = (listening(&database).await, listening(&database).await);
    let sender = database.open().await;
    for _ in 0..3 {
        sender.nudge();
        tokio::join!(nudged(&one), nudged(&two));
    }
    // Its own word is no news to a process; the next one that it hears is the other's.
    one.nudge();
    nudged(&two).await;
    let nothing = tokio::time::timeout(Duration::from_millis(200), one.nudged()).await;
    assert!(nothing.is_err(), "it heard itself");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::disallowed_methods, reason = "what is counted is a rate")]
async fn many_nudges_are_few_words() {
    let database = Database::new().await;
    let (client, mut connection) = tokio_postgres::connect(&database.url(), NoTls).await.unwrap();
    let (heard, mut words) = tokio::sync::mpsc::channel(1_024);
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let tokio_postgres::AsyncMessage::Notification(word) = message {
                heard.try_send(word).unwrap();
            }
        }
    });
    client.batch_execute("LISTEN posthaste_due").await.unwrap();
    let sender = database.open().await;
    let since = std::time::Instant::now();
    for _ in 0..500 {
        for _ in 0..100 {
            sender.nudge();
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let last = since.elapsed();
    // What is said in the end is heard after it: nobody is left without a last word.
    let mut count = 0;
    while tokio::time::timeout(Duration::from_millis(500), words.recv()).await.is_ok() {
        count += 1;
    }
    let most = 2 + since.elapsed().as_millis() / 50;
    assert!(count >= 2 && count <= most, "{count} in {last:?}, at most {most}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_listener_listens_again() {
    let database = Database::new().await;
    let store = listening(&database).await;
    let sender = database.open().await;
    let admin = connect(&server()).await;
    for _ in 0..3 {
        let cut = format!("SELECT count(pg_terminate_backend(pid, 5000)) {LISTENERS}");
        let cut = admin.query_one(&cut, &[&database.name]).await.unwrap();
        assert!(cut.get::<_, i64>(0) >= 1);
        // When it listens again, it says so.
        nudged(&store).await;
        sender.nudge();
        nudged(&store).await;
    }
}

/// A server that vanished without a word: the connection is there, and nobody answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_listener_is_noticed() {
    let database = Database::new().await;
    let store = listening(&database).await;
    let sender = database.open().await;
    let admin = connect(&server()).await;
    let find = format!("SELECT pid {LISTENERS}");
    let pid: i32 = admin.query_one(&find, &[&database.name]).await.unwrap().get(0);
    signal("STOP", pid);
    nudged(&store).await;
    sender.nudge();
    nudged(&store).await;
    signal("CONT", pid);
}

fn signal(name: &str, pid: i32) {
    let mut kill = std::process::Command::new("kill");
    assert!(kill.args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
}
