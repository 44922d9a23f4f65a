//! What a database does to those who use it: it fills its disk, takes no more connections, keeps a
//! table locked, goes away and comes back elsewhere, runs out of transaction ids. Nothing that was
//! accepted is lost, everything goes on by itself, and health, status and log say what is wrong.
//!
//! Each has a server of its own: what is done to it, other tests would not survive.
#![expect(clippy::disallowed_methods, reason = "waits for other processes, with a bound")]

mod common;

use common::database::Database;
use common::facts::by_message;
use common::{Posthaste, Setup};
use posthaste_testkit::{Receiver, Reply};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use xtask::services::postgres::{self, Server, Stop};

const HEALTH: &str = "/api/v1/health";
const STATUS: &str = "/api/v1/status";

fn private_server() -> Server {
    Server::start(postgres::find().unwrap()).unwrap()
}

fn setup_on(server: &Server) -> Setup {
    Setup::on(Database::on(server.url()))
}

/// What may be in no text that others see: where the database is and how to get in.
#[track_caller]
fn assert_discreet(setup: &Setup, text: &str) {
    let url = setup.database().url().unwrap();
    let (_, rest) = url.split_once("://").unwrap();
    let (login, place) = rest.rsplit_once('@').unwrap();
    let (_, password) = login.split_once(':').unwrap();
    assert!(!text.contains(password), "the password is in: {text}");
    assert!(!text.contains(place.split('/').next().unwrap()), "the address is in: {text}");
}

/// Health says this reason, and so does the log.
async fn assert_told(setup: &Setup, server: &Posthaste, reason: &str, words: &str) {
    // A connection that is cut says first that the server is stopping.
    let health = server.get_until(HEALTH, |health| health["database"]["reason"] == reason).await;
    assert_eq!(health["database"]["status"], "error", "{health}");
    let detail = health["database"]["detail"].as_str().unwrap();
    assert!(detail.contains(words), "{detail}");
    assert_discreet(setup, &health.to_string());
    // The log is written a moment later.
    let since = Instant::now();
    loop {
        let told = server.events("store.unavailable");
        told.iter().for_each(|event| assert_discreet(setup, &event.to_string()));
        // One that is stopping says so first.
        let reasons = [reason, "starting"];
        if told.last().is_some_and(|event| reasons.iter().any(|it| event["reason"] == *it)) {
            break;
        }
        assert!(since.elapsed() < common::PATIENCE, "{told:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The last line about the store says that it can be used again.
async fn until_back(server: &Posthaste) -> Value {
    server.get_until(HEALTH, |health| health["database"]["status"] == "ok").await;
    loop {
        if let Some(back) = server.events("store.available").pop() {
            return back;
        }
        // Something has to succeed.
        server.get_until(STATUS, |status| status["workers"].is_number()).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn warnings(server: &Posthaste) -> Vec<String> {
    server.log().into_iter().filter(|line| line.contains("\"WARN\"")).collect()
}

/// Exactly what was accepted arrived, and stands as delivered.
async fn assert_all_delivered(server: &Posthaste, receiver: &Receiver, accepted: &[String]) {
    let status =
        server.status_until(|status| status["delivered_last_hour"] == accepted.len()).await;
    for state in ["pending", "in_flight", "awaiting_retry", "dead_letter", "held"] {
        assert_eq!(status[state], 0, "{status:#}");
    }
    let arrived: BTreeSet<String> = by_message(&receiver.requests()).into_keys().collect();
    assert_eq!(arrived, accepted.iter().cloned().collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_and_loses_nothing() {
    let database = Server::start_with_small_disk(postgres::find().unwrap(), 48).unwrap();
    let setup = setup_on(&database);
    setup.database().sql("ALTER ROLE posthaste SET default_tablespace = small");
    let receiver = Receiver::always(Reply::ok()).await;
    let server = setup.start();
    let application = server.application().await;
    server.endpoint(&application, &receiver.url("/"), json!({})).await;
    let mut accepted = vec![server.publish(&application, 100).await.unwrap()];
    // What is left of the disk, to the last page.
    let fill = "CREATE TABLE filler (x text); ALTER TABLE filler ALTER x SET STORAGE PLAIN; \
        DO $$ DECLARE count int := 4096; BEGIN \
            WHILE count > 0 LOOP \
                BEGIN \
                    INSERT INTO filler SELECT repeat('x', 7000) FROM generate_series(1, count); \
                EXCEPTION WHEN disk_full THEN count := count / 2; END; \
            END LOOP; \
        END $$";
    setup.database().sql(fill);
    // Pages that have room still take something.
    let refusal = loop {
        match server.publish(&application, 6_000).await {
            Ok(id) => accepted.push(id),
            Err(refusal) => break refusal,
        }
    };
    assert!(refusal.contains("try again") && !refusal.contains("disk"), "{refusal}");
    assert_told(&setup, &server, "disk_full", "disk").await;
    assert_eq!(server.status().await["dead_letter"], 0, "reading goes on");
    setup.database().sql("DROP TABLE filler");
    let again = async {
        loop {
            if let Ok(id) = server.publish(&application, 6_000).await {
                return id;
            }
        }
    };
    accepted.push(tokio::time::timeout(common::PATIENCE, again).await.unwrap());
    assert_all_delivered(&server, &receiver, &accepted).await;
    until_back(&server).await;
    let warnings = warnings(&server);
    assert!(warnings.len() <= 2, "{warnings:#?}");
}

/// Sessions that do nothing.
struct Crowd(Vec<Child>);

impl Drop for Crowd {
    fn drop(&mut self) {
        for one in &mut self.0 {
            let _ = one.kill();
            let _ = one.wait();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_connections_taken_is_told_and_waited_for() {
    const CONNECTIONS: usize = 24;
    let mut database = private_server();
    database.ask(&format!("ALTER SYSTEM SET max_connections = {CONNECTIONS}")).unwrap();
    // The server notices when somebody who sleeps there is gone.
    database.ask("ALTER SYSTEM SET client_connection_check_interval = '100ms'").unwrap();
    database.restart(Stop::Fast).unwrap();
    let setup = setup_on(&database);
    let receiver = Receiver::always(Reply::ok()).await;
    let server = setup.start();
    let application = server.application().await;
    server.endpoint(&application, &receiver.url("/"), json!({})).await;
    let mut accepted = vec![server.publish(&application, 100).await.unwrap()];
    // Ours are cut off as soon as there are as many others as there may be.
    let program = common::database::program("psql");
    let mut crowd = Crowd(Vec::new());
    let sleep = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                 WHERE application_name = 'posthaste'; SELECT pg_sleep(600)";
    while crowd.0.len() < CONNECTIONS {
        let mut psql = Command::new(&program);
        psql.args(["-X", "-w", "-q", "-c", sleep, &database.url()]);
        crowd.0.push(psql.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        // One that is not let in ends.
        tokio::time::sleep(Duration::from_millis(100)).await;
        crowd.0.retain_mut(|one| one.try_wait().unwrap().is_none());
    }
    server.publish(&application, 100).await.unwrap_err();
    assert_told(&setup, &server, "connections", "max_connections").await;
    let (status, answer) = server.api("GET", STATUS, Value::Null).await;
    assert_eq!(status, 503, "{answer}");
    assert!(answer["detail"].as_str().unwrap().contains("max_connections"), "{answer}");
    drop(crowd);
    server.get_until(HEALTH, |health| health["database"]["status"] == "ok").await;
    accepted.push(server.publish(&application, 100).await.unwrap());
    assert_all_delivered(&server, &receiver, &accepted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_table_is_not_an_unreachable_database() {
    let database = private_server();
    let setup = setup_on(&database);
    let receiver = Receiver::always(Reply::ok()).await;
    let server = setup.start();
    let application = server.application().await;
    server.endpoint(&application, &receiver.url("/"), json!({})).await;
    let mut accepted = vec![server.publish(&application, 100).await.unwrap()];
    server.status_until(|status| status["delivered_last_hour"] == 1).await;
    let mut holder = setup.database().hold_table("posthaste.message");
    assert_told(&setup, &server, "locked", "locked").await;
    let health = server.api("GET", HEALTH, Value::Null).await.1.to_string();
    assert!(health.contains("is there") && !health.contains("reach"), "{health}");
    let refusal = server.publish(&application, 100).await.unwrap_err();
    assert!(!refusal.contains("reach"), "{refusal}");
    let log = server.events("store.unavailable")[0].to_string();
    assert!(log.contains("locked") && !log.contains("reach"), "{log}");
    holder.kill().unwrap();
    holder.wait().unwrap();
    setup.database().sql(
        "SELECT pg_terminate_backend(pid) FROM pg_locks \
         WHERE relation = 'posthaste.message'::regclass AND mode = 'ShareLock'",
    );
    server.get_until(HEALTH, |health| health["database"]["status"] == "ok").await;
    accepted.push(server.publish(&application, 100).await.unwrap());
    assert_all_delivered(&server, &receiver, &accepted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_and_comes_back_is_three_lines() {
    let mut database = private_server();
    let setup = setup_on(&database).with("POSTHASTE_LOG__LEVEL", "info");
    let failing = Receiver::in_order([Reply::status(500), Reply::ok()]).await;
    let server = setup.start();
    let application = server.application().await;
    server.endpoint(&application, &failing.url("/"), json!({})).await;
    let before = server.publish(&application, 100).await.unwrap();
    failing.wait_for(1).await;
    database.stop(Stop::Fast);
    let (status, answer) = server.api("GET", STATUS, Value::Null).await;
    assert_eq!(status, 503, "{answer}");
    assert_discreet(&setup, &answer.to_string());
    assert_told(&setup, &server, "unreachable", "cannot be reached").await;
    let shown = Command::new(env!("CARGO_BIN_EXE_posthaste"))
        .args(["status", "--url", &server.url(), "--token", &common::token()])
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&shown.stderr).into_owned();
    assert!(shown.contains("cannot be reached") && !shown.contains("panicked"), "{shown}");
    for _ in 0..20 {
        server.publish(&application, 100).await.unwrap_err();
    }
    database.resume().unwrap();
    let back = until_back(&server).await;
    assert!(back["away_seconds"].as_f64().unwrap() > 0.0, "{back}");
    assert!(back["failures"].as_u64().unwrap() > 1, "{back}");
    let after = server.publish(&application, 100).await.unwrap();
    let status = server.status_until(|status| status["delivered_last_hour"] == 2).await;
    assert_eq!(status["dead_letter"], 0, "{status}");
    let arrived: BTreeSet<_> = by_message(&failing.requests()).into_keys().collect();
    assert_eq!(arrived, BTreeSet::from([before, after]));
    assert_eq!(warnings(&server).len(), 1, "{:#?}", warnings(&server));
    assert_eq!(server.events("store.available").len(), 1);
}

/// The address names both, the standby first.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_failover_the_other_host_is_found() {
    let mut primary = private_server();
    let setup = setup_on(&primary);
    let standby = primary.standby().unwrap();
    let own = setup.database().url().unwrap();
    let host = |url: &str| {
        let (_, place) = url.rsplit_once('@').unwrap();
        place.split('/').next().unwrap().to_owned()
    };
    let (first, second) = (host(&standby.url()), host(&own));
    let both = own.replace(&second, &format!("{first},{second}"));
    let setup = setup.with("POSTHASTE_DATABASE_URL", &both);
    let receiver = Receiver::always(Reply::ok()).await;
    let server = setup.start();
    let application = server.application().await;
    server.endpoint(&application, &receiver.url("/"), json!({})).await;
    let mut accepted = vec![server.publish(&application, 100).await.unwrap()];
    server.status_until(|status| status["delivered_last_hour"] == 1).await;
    // What the standby does not have yet would be lost with the primary.
    setup.database().sql_until(
        "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()",
        "1",
    );
    primary.stop(Stop::Fast);
    // The other one lives and must not be used yet.
    server.publish(&application, 100).await.unwrap_err();
    server.get_until(HEALTH, |health| health["database"]["status"] == "error").await;
    standby.promote().unwrap();
    server.get_until(HEALTH, |health| health["database"]["status"] == "ok").await;
    accepted.push(server.publish(&application, 100).await.unwrap());
    assert_all_delivered(&server, &receiver, &accepted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_takes_no_writes_is_one_that_is_away() {
    let database = private_server();
    let setup = setup_on(&database);
    let receiver = Receiver::always(Reply::ok()).await;
    let server = setup.start();
    let application = server.application().await;
    server.endpoint(&application, &receiver.url("/"), json!({})).await;
    let mut accepted = vec![server.publish(&application, 100).await.unwrap()];
    let url = setup.database().url().unwrap();
    let name = url.rsplit_once('/').unwrap().1;
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE application_name = 'posthaste'";
    database.ask(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on")).unwrap();
    database.ask(cut).unwrap();
    assert_told(&setup, &server, "read_only", "takes no writes").await;
    server.publish(&application, 100).await.unwrap_err();
    database.ask(&format!("ALTER DATABASE {name} RESET default_transaction_read_only")).unwrap();
    // Connections that were made meanwhile are not kept.
    server.get_until(HEALTH, |health| health["database"]["status"] == "ok").await;
    accepted.push(server.publish(&application, 100).await.unwrap());
    assert_all_delivered(&server, &receiver, &accepted).await;
}

/// The ids are really used up to that point, and a forgotten replication slot keeps the server from
/// doing something about it.
#[tokio::test(flavor = "multi_thread")]
async fn transaction_ids_that_run_out_are_warned_of() {
    let mut database = private_server();
    database.ask("ALTER SYSTEM SET wal_level = logical").unwrap();
    database.restart(Stop::Fast).unwrap();
    let setup = setup_on(&database);
    let server = setup.start();
    let (health, status) = (server.api("GET", HEALTH, Value::Null).await.1, server.status().await);
    assert_eq!(health["database"]["warnings"], Value::Null, "{health}");
    assert_eq!(status["warnings"], json!([]), "{status}");
    setup.database().sql("SELECT pg_create_logical_replication_slot('forgotten', 'pgoutput')");
    database.stop(Stop::Fast);
    database.set_next_transaction(1_700_000_000).unwrap();
    database.resume().unwrap();
    let warned = |answer: &Value| answer["warnings"][0]["code"] == "transaction_ids";
    let status = server.status_until(warned).await;
    let detail = status["warnings"][0]["detail"].as_str().unwrap();
    for part in ["79 %", "VACUUM", "replication slot forgotten"] {
        assert!(detail.contains(part), "`{part}` is not in: {detail}");
    }
    let (code, health) = server.api("GET", HEALTH, Value::Null).await;
    assert_eq!((code, &health["database"]["warnings"][0]), (200, &json!("transaction_ids")));
    let metrics = server.api("GET", "/metrics", Value::Null).await.1;
    let metrics = metrics.as_str().unwrap();
    assert!(metrics.contains("posthaste_database_transaction_ids_used 0.79"), "{metrics}");
    // A worker says so at its start, and works.
    let worker = setup.worker().start();
    let since = Instant::now();
    while worker.events("database.warning").is_empty() {
        assert!(since.elapsed() < common::PATIENCE);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    server.application().await;
}
