//! What only PostgreSQL can do to a process: be away, refuse a login, be of another version.
#![expect(clippy::disallowed_methods, reason = "waits for other processes, with a bound")]

mod common;

use common::Setup;
use common::database::{Database, psql, server_url, url_of};
use common::output::{complaint, ended, printed};
use posthaste_testkit::{Receiver, Reply};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SERVE: [&str; 3] = ["serve", "--listen", "127.0.0.1:0"];
/// What every complaint about a start must come within.
const SOON: Duration = Duration::from_secs(30);

/// A setup whose database is at `url`, whatever is there.
fn at(url: &str) -> Setup {
    Setup::new().with("POSTHASTE_DATABASE_URL", url)
}

/// A start that fails, for `serve` and `migrate` alike: the line of each.
#[track_caller]
fn complaints(setup: &Setup) -> [String; 2] {
    let since = Instant::now();
    let lines = [&SERVE[..], &["migrate"]].map(|words| complaint(&ended(setup, words), 1));
    assert!(since.elapsed() < SOON, "{lines:?}");
    lines
}

#[test]
fn a_server_that_is_not_there_is_one_clear_line() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let setup = at(&format!("postgres://user:hunter2@{address}/posthaste"));
    for line in complaints(&setup) {
        for part in ["127.0.0.1", &address.port().to_string(), "database_url"] {
            assert!(line.contains(part), "`{part}` is not in: {line}");
        }
        assert!(!line.contains("hunter2"), "{line}");
    }
}

#[test]
fn a_wrong_password_is_told_and_not_shown() {
    let url = server_url();
    let (_, place) = url.rsplit_once('@').unwrap();
    for line in complaints(&at(&format!("postgres://stranger:hunter2@{place}"))) {
        assert!(line.contains("password") && line.contains("database_url"), "{line}");
        assert!(!line.contains("hunter2"), "{line}");
    }
}

#[test]
fn a_database_that_is_not_there_is_named() {
    for line in complaints(&at(&url_of("no_such_database"))) {
        assert!(line.contains("no_such_database") && line.contains("CREATE DATABASE"), "{line}");
    }
}

#[test]
fn a_schema_of_a_newer_version_is_left_alone() {
    let setup = Setup::on(Database::on_postgres());
    printed(&ended(&setup, &["migrate"]));
    let newer = "INSERT INTO posthaste.migration (number, checksum) VALUES (9999, 'x')";
    setup.database().sql(newer);
    for line in complaints(&setup) {
        assert!(line.contains("newer version"), "{line}");
    }
}

/// Ten processes that start at once on an empty database, and again on a full one.
#[test]
fn many_migrations_at_once_make_one_schema() {
    const PROCESSES: usize = 10;
    let setup = Setup::on(Database::on_postgres());
    for _ in 0..2 {
        let started: Vec<_> = (0..PROCESSES)
            .map(|_| {
                let mut command = setup.run(&["migrate"]);
                command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        for child in started {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
    let twice = "SELECT count(*) - count(DISTINCT number) FROM posthaste.migration";
    assert_eq!(setup.database().sql(twice), "0");
}

#[test]
fn the_database_is_named_without_its_password() {
    let setup = Setup::on(Database::on_postgres());
    let url = setup.database().url().unwrap();
    let password = url.split_once("://").unwrap().1.split_once(':').unwrap().1;
    let password = password.split_once('@').unwrap().0;
    for words in [&["migrate"][..], &["config"]] {
        let text = printed(&ended(&setup, words));
        assert!(text.contains("postgres://") && !text.contains(password), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn people_log_in_with_a_role_of_their_own() {
    let setup = Setup::on(Database::on_postgres());
    let own = setup.database().url().unwrap();
    let name = own.rsplit_once('/').unwrap().1.to_owned();
    let role = "DO $$ BEGIN CREATE ROLE scram LOGIN PASSWORD 'p@ss/word'; \
                EXCEPTION WHEN duplicate_object THEN NULL; END $$";
    psql(&server_url(), role);
    setup.database().sql(&format!("GRANT CREATE ON DATABASE {name} TO scram"));
    let (_, place) = own.rsplit_once('@').unwrap();
    let url = format!("postgres://scram:p%40ss%2Fword@{place}");
    let setup = setup.with("POSTHASTE_DATABASE_URL", &url);
    let receiver = Receiver::always(Reply::ok()).await;
    let server = setup.start();
    let application = server.application().await;
    server.endpoint(&application, &receiver.url("/"), json!({})).await;
    server.message(&application, "{}").await;
    server.status_until(|status| status["delivered_last_hour"] == 1).await;
    drop(server);
    setup.database().sql("DROP OWNED BY scram");
}

/// A worker where there is no folder to write to: it keeps nothing on disk and signs no tokens.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_needs_no_folder() {
    let receiver = Receiver::always(Reply::ok()).await;
    let setup = Setup::on(Database::on_postgres()).command(&[
        "serve",
        "--dev",
        "--no-worker",
        "--listen",
        "127.0.0.1:0",
    ]);
    let server = setup.start();
    let nowhere = setup.folder().join("a file, no folder");
    std::fs::write(&nowhere, "").unwrap();
    let worker =
        setup.worker().command(&["worker", "--dev", "--data-dir", nowhere.to_str().unwrap()]);
    let _worker = worker.without("POSTHASTE_JWT_SECRET").start();
    let application = server.application().await;
    server.endpoint(&application, &receiver.url("/"), json!({})).await;
    server.message(&application, "{}").await;
    server.status_until(|status| status["delivered_last_hour"] == 1).await;
}

#[test]
fn the_benchmark_measures_a_server_only_when_asked() {
    let setup = Setup::on(Database::on_postgres());
    let words = ["bench", "--seconds", "1", "--rate", "40", "--json"];
    let messages = "SELECT count(*) FROM posthaste.message";
    printed(&ended(&setup, &["migrate"]));
    printed(&ended(&setup, &words));
    assert_eq!(setup.database().sql(messages), "0");
    let text = printed(&ended(&setup, &[&words[..], &["--postgres"]].concat()));
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&report["accepted"]["count"], &report["lost"]), (&json!(40), &json!(0)));
    assert_eq!(setup.database().sql(messages), "40");
    let file = setup.with("POSTHASTE_DATABASE_URL", "sqlite:x.db");
    let line = complaint(&ended(&file, &["bench", "--postgres"]), 2);
    assert!(line.contains("postgres://"), "{line}");
}

/// API processes and workers apart, some killed, and nothing is lost or counted twice.
#[tokio::test(flavor = "multi_thread")]
async fn many_processes_are_one_product() {
    const MESSAGES: usize = 400;
    let receiver = Receiver::always(Reply::ok()).await;
    let api = ["serve", "--dev", "--no-worker", "--listen", "127.0.0.1:0"];
    let setup = Setup::on(Database::on_postgres()).command(&api);
    let servers = [setup.start(), setup.start()];
    let mut workers = vec![setup.worker().start(), setup.worker().start(), setup.worker().start()];
    let application = servers[0].application().await;
    servers[1].endpoint(&application, &receiver.url("/"), json!({})).await;
    for number in 0..MESSAGES {
        servers[number % 2].message(&application, "{}").await;
        if number % 100 == 50 {
            workers.remove(0).kill();
            workers.push(setup.worker().start());
        }
    }
    let settled = |status: &Value| {
        ["pending", "in_flight", "awaiting_retry"].iter().all(|name| status[name] == 0)
    };
    for server in &servers {
        let status = server.status_until(settled).await;
        assert_eq!(status["delivered_last_hour"], MESSAGES, "{status}");
        assert_eq!(status["dead_letter"], 0, "{status}");
    }
    let requests = common::facts::by_message(&receiver.requests());
    assert_eq!(requests.len(), MESSAGES);
}

/// A worker that only looked every second would need a second for each.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_hears_at_once_of_what_another_process_accepted() {
    const MESSAGES: usize = 40;
    let receiver = Receiver::always(Reply::ok()).await;
    let api = ["serve", "--dev", "--no-worker", "--listen", "127.0.0.1:0"];
    let setup = Setup::on(Database::on_postgres()).command(&api);
    let server = setup.start();
    let _worker = setup.worker().start();
    let application = server.application().await;
    server.endpoint(&application, &receiver.url("/"), json!({})).await;
    server.message(&application, "{}").await;
    receiver.wait_for(1).await;
    let since = Instant::now();
    for number in 2..=MESSAGES {
        server.message(&application, "{}").await;
        receiver.wait_for(number).await;
    }
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
}

/// A way to the server that can fall silent: connections stay open and nothing comes through.
struct Wire {
    address: std::net::SocketAddr,
    cut: Arc<AtomicBool>,
}

impl Wire {
    fn to(server: std::net::SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, cut) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let is_cut = cut.clone();
        std::thread::spawn(move || {
            for one in listener.incoming().map_while(Result::ok) {
                let other = TcpStream::connect(server).unwrap();
                let back = (other.try_clone().unwrap(), one.try_clone().unwrap());
                for (from, to) in [(one, other), back] {
                    let is_cut = is_cut.clone();
                    std::thread::spawn(move || carry(from, to, &is_cut));
                }
            }
        });
        Self { address, cut }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool) {
    let mut bytes = [0; 4_096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        // What arrives while the wire is cut is lost, as on a network that is gone.
        if !is_cut.load(Ordering::SeqCst) && to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}

/// Not down: a server that is down says so at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_falls_silent_costs_nobody_an_answer() {
    let receiver = Receiver::always(Reply::ok()).await;
    let database = Database::on_postgres();
    let mut url = url::Url::parse(&database.url().unwrap()).unwrap();
    let wire = Wire::to(format!("127.0.0.1:{}", url.port().unwrap()).parse().unwrap());
    url.set_port(Some(wire.address.port())).unwrap();
    let setup = Setup::on(database).with("POSTHASTE_DATABASE_URL", url.as_str());
    let server = setup.start();
    let application = server.application().await;
    let endpoint = server.endpoint(&application, &receiver.url("/"), json!({})).await;
    let before = server.message(&application, "{}").await;
    server.until_state((&application, &before, &endpoint), "delivered").await;

    wire.cut.store(true, Ordering::SeqCst);
    let path = format!("/api/v1/app/{application}/msg");
    let body = json!({ "eventType": "test.event", "payload": {} });
    let (status, answer) = server.api("POST", &path, body).await;
    assert_eq!(status, 503, "{answer}");
    assert_eq!(server.api("GET", "/api/v1/health", Value::Null).await.0, 503);
    // Nor does it keep the process from stopping.
    server.signal("TERM");
    assert!(server.wait().success());
}
