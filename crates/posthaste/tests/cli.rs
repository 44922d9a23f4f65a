//! The binary as a script sees it: what it prints, and the code it ends with.

mod common;

use common::output::{complaint, ended, printed};
use common::{PATIENCE, Setup};
use rusqlite::Connection;
use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

fn wait(child: &mut Child) -> ExitStatus {
    let since = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(since.elapsed() < PATIENCE, "the process does not end");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn bad_configuration_is_one_line_and_code_2() {
    let setup = Setup::new().with("POSTHASTE_HTTP__TIMEOUT", "15");
    for command in ["serve", "worker", "migrate", "config", "token"] {
        let line = complaint(&ended(&setup, &[command]), 2);
        for part in ["http.timeout", "POSTHASTE_HTTP__TIMEOUT", "`15`", "15s"] {
            assert!(line.contains(part), "{command}: {line}");
        }
    }
    let setup = Setup::new().with("POSTHASTE_RETRY__PREST", "day");
    let line = complaint(&ended(&setup, &["serve"]), 2);
    assert!(line.contains("did you mean POSTHASTE_RETRY__PRESET?"), "{line}");
    let setup = Setup::new().with("POSTHASTE_DATABASE_URL", "postgres://user:hunter2@db:port/x");
    let line = complaint(&ended(&setup, &["serve"]), 2);
    assert!(line.contains("database_url") && !line.contains("hunter2"), "{line}");
}

#[test]
fn f011_a_blank_secret_stops_the_start() {
    for secret in ["", "  "] {
        let setup = Setup::new().with("POSTHASTE_JWT_SECRET", secret);
        let line = complaint(&ended(&setup, &["serve", "--listen", "127.0.0.1:0"]), 2);
        assert!(line.contains("jwt_secret"), "{line}");
    }
}

#[test]
fn a_file_is_read_and_its_errors_name_the_line() {
    let setup = Setup::new();
    let path = setup.folder().join("posthaste.toml");
    std::fs::write(&path, "[http]\ntimeout = \"7s\"\n").unwrap();
    let shown = printed(&ended(&setup, &["config"]));
    assert!(shown.contains("http.timeout = \"7s\""), "{shown}");
    std::fs::write(&path, "[http]\ntimeout = \n").unwrap();
    let line = complaint(&ended(&setup, &["config"]), 2);
    assert!(line.contains("line 2"), "{line}");
    let missing = ended(&setup, &["config", "--config", "missing.toml"]);
    assert!(complaint(&missing, 2).contains("missing.toml"));
}

#[test]
fn config_shows_origins_and_masks_secrets() {
    let setup = Setup::new().with("POSTHASTE_JWT_SECRET", "hunter2-hunter2-hunter2");
    let shown = printed(&ended(&setup, &["config", "--set", "http.timeout=9s"]));
    assert!(!shown.contains("hunter2"), "{shown}");
    let line = |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    assert!(line("# jwt_secret = ********").ends_with("# POSTHASTE_JWT_SECRET"));
    assert!(line("http.timeout = \"9s\"").ends_with("# --set"));
    assert!(line("signing.kind = \"hmac\"").ends_with("# default"));
}

#[test]
fn a_port_in_use_names_the_way_out() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let setup = Setup::new();
    let line = complaint(&ended(&setup, &["serve", "--listen", &address]), 1);
    assert!(line.contains(&address) && line.contains("--listen"), "{line}");
}

#[test]
fn a_folder_that_cannot_be_used_names_the_way_out() {
    let setup = Setup::new();
    // Works for root too, whom permissions do not stop: a file is in the folder's place.
    let path = setup.folder().join("taken");
    std::fs::write(&path, "").unwrap();
    let folder = path.to_str().unwrap();
    let line = complaint(&ended(&setup, &["serve", "--data-dir", folder]), 1);
    assert!(line.contains(folder) && line.contains("--data-dir"), "{line}");
    let line = complaint(&ended(&setup, &["migrate", "--data-dir", folder]), 1);
    assert!(line.contains(folder), "{line}");
}

#[test]
fn a_database_of_a_newer_version_is_left_alone() {
    let setup = Setup::new();
    printed(&ended(&setup, &["migrate"]));
    let database = setup.folder().join("posthaste.db");
    let connection = Connection::open(&database).unwrap();
    connection.execute("INSERT INTO migration (number, checksum) VALUES (9999, 'x')", []).unwrap();
    drop(connection);
    for words in [&["serve", "--listen", "127.0.0.1:0"][..], &["migrate"]] {
        let line = complaint(&ended(&setup, words), 1);
        assert!(line.contains("newer version") && line.contains("posthaste.db"), "{line}");
    }
}

#[test]
fn a_database_of_another_program_is_left_alone() {
    let setup = Setup::new();
    let database = setup.folder().join("posthaste.db");
    Connection::open(&database).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    let line = complaint(&ended(&setup, &["migrate"]), 1);
    assert!(line.contains("another program"), "{line}");
    std::fs::write(&database, "no database at all, but long enough to have a header".repeat(50))
        .unwrap();
    let line = complaint(&ended(&setup, &["migrate"]), 1);
    assert!(line.contains("not a database"), "{line}");
}

#[test]
fn a_locked_database_is_one_clear_line() {
    let setup = Setup::new();
    printed(&ended(&setup, &["migrate"]));
    let holder = Connection::open(setup.folder().join("posthaste.db")).unwrap();
    holder.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let line = complaint(&ended(&setup, &["serve", "--listen", "127.0.0.1:0"]), 1);
    assert!(line.contains("locked") && line.contains("end the program"), "{line}");
}

fn terminate(child: &Child, name: &str) {
    let sent = Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status();
    assert!(sent.unwrap().success());
}

#[test]
fn signals_stop_in_order() {
    for name in ["TERM", "INT"] {
        let server = Setup::new().start();
        server.signal(name);
        assert_eq!(server.wait().code(), Some(0), "SIG{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_exits_at_once() {
    let server = Setup::new()
        .with("POSTHASTE_SHUTDOWN__TIMEOUT", "10m")
        .with("POSTHASTE_HTTP__TIMEOUT", "60s")
        .start();
    // A receiver that takes the request and never answers keeps the stop waiting.
    let receiver = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", receiver.local_addr().unwrap());
    let application = server.application().await;
    server.endpoint(&application, &url, serde_json::json!({})).await;
    server.message(&application, "{}").await;
    let (_held, _) = tokio::task::spawn_blocking(move || receiver.accept().unwrap()).await.unwrap();
    server.signal("TERM");
    let since = Instant::now();
    while server.events("server.stopping").is_empty() {
        assert!(since.elapsed() < PATIENCE, "{:#?}", server.log());
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    server.signal("TERM");
    let status = tokio::task::spawn_blocking(move || server.wait()).await.unwrap();
    assert_eq!(status.code(), Some(130));
}

#[test]
fn f054_the_allow_list_in_force_is_logged_at_the_start() {
    let setup = Setup::new().with("POSTHASTE_ALLOWED_NETWORKS", " 192.168.3.0/24 ,build.test");
    let server = setup.start();
    let since = Instant::now();
    let started = loop {
        let started = server.events("server.started");
        if !started.is_empty() {
            break started;
        }
        assert!(since.elapsed() < PATIENCE, "{:#?}", server.log());
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    let shown = started[0]["allowed_networks"].as_str().unwrap().to_owned();
    for part in ["192.168.3.0/24", "build.test", "127.0.0.0/8"] {
        assert!(shown.contains(part), "{shown}");
    }
    let setup = Setup::new().with("POSTHASTE_ALLOWED_NETWORKS", "192.168.3.300/24");
    let line = complaint(&ended(&setup, &["serve"]), 2);
    assert!(line.contains("192.168.3.300/24"), "{line}");
}

#[test]
fn client_commands_tell_unreachable_from_refused() {
    let setup = Setup::new();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let line = complaint(&ended(&setup, &["status", "--url", &format!("http://{free}")]), 3);
    assert!(line.contains("posthaste serve"), "{line}");
    let server = setup.start();
    let url = server.url();
    let line = complaint(&ended(&setup, &["status", "--url", &url, "--token", "wrong"]), 4);
    assert!(line.contains("401"), "{line}");
    let send = ["send", "--url", &url, "--app", "nobody", "--type", "x", "{}"];
    complaint(&ended(&setup, &send), 4);
    let line = complaint(&ended(&setup, &["send", "--app", "a", "--type", "x", "[1]"]), 2);
    assert!(line.contains("JSON object"), "{line}");
}

#[test]
fn sending_and_replaying_from_a_script() {
    let setup = Setup::new().with("POSTHASTE_RETRY__DELAYS", "");
    let server = setup.start();
    let url = server.url();
    let run = |words: &[&str]| {
        let mut all = words.to_vec();
        all.extend(["--url", &url]);
        printed(&ended(&setup, &all))
    };
    run(&["send", "--app", "shop", "--create", "--type", "ping", "{}"]);
    // Nobody listens there, so with no retries the delivery is given up at once.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let endpoint = format!(r#"{{"url":"http://{free}/","uid":"billing"}}"#);
    // The commands' token is of the default organisation, which the test's own is not.
    let token = printed(&ended(&setup, &["token"]));
    let create_endpoint = |body: &str| {
        let answer = ureq::post(format!("{url}/api/v1/app/shop/endpoint"))
            .header("authorization", format!("Bearer {}", token.trim()))
            .content_type("application/json")
            .send(body);
        answer.unwrap().status().as_u16()
    };
    assert_eq!(create_endpoint(&endpoint), 201);
    let id = run(&["send", "--app", "shop", "--type", "invoice.paid", "{\"a\": 1}"]);
    let id = id.trim();
    assert!(id.starts_with("msg_"), "{id}");
    let list = ["dead-letters", "list", "--app", "shop", "--endpoint", "billing"];
    let since = Instant::now();
    while !run(&list).contains(id) {
        assert!(since.elapsed() < PATIENCE, "{}", run(&list));
    }
    let other = r#"{"url":"http://127.0.0.1:9/","uid":"other","channels":["never"]}"#;
    let created = create_endpoint(other);
    assert_eq!(created, 201);
    let none = run(&["dead-letters", "list", "--app", "shop", "--endpoint", "other"]);
    assert_eq!(none.lines().count(), 1, "{none}");
    assert!(run(&["status"]).lines().count() == 2);
    let status = run(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["dead_letter"], 1);
    let replayed =
        run(&["replay", "--app", "shop", "--endpoint", "billing", "--since", "1h", "--rate", "5"]);
    assert_eq!(replayed, "1 deliveries are due again\n");
    let one = run(&["replay", id, "--app", "shop", "--endpoint", "billing"]);
    assert!(one.contains("1 delivery"), "{one}");
}

#[test]
fn help_and_completions() {
    let setup = Setup::new();
    let help = printed(&ended(&setup, &["--help"]));
    for command in [
        "serve",
        "worker",
        "demo",
        "send",
        "status",
        "token",
        "migrate",
        "config",
        "dead-letters",
        "replay",
        "bench",
        "completions",
    ] {
        assert!(help.contains(command), "{help}");
        printed(&ended(&setup, &[command, "--help"]));
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(printed(&ended(&setup, &["completions", shell])).contains("dead-letters"));
    }
    let unknown = ended(&setup, &["serv"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("serve"));
}

#[test]
fn tokens_need_a_secret_and_take_a_lifetime() {
    let setup = Setup::new();
    assert!(printed(&ended(&setup, &["token", "--expires", "30d"])).starts_with("ey"));
    complaint(&ended(&setup, &["token", "--expires", "30"]), 2);
    complaint(&ended(&setup, &["token", "--org", "team"]), 2);
    complaint(&ended(&setup, &["token", "--app", "my-uid"]), 2);
    let mut bare = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    let output = bare.args(["token", "--data-dir"]).arg(setup.folder().join("no")).output();
    assert!(complaint(&output.unwrap(), 2).contains("posthaste serve"));
}

#[test]
fn a_login_in_the_servers_address_is_never_shown() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let setup = Setup::new();
    let replay = ["replay", "--app", "a", "--endpoint", "e", "--since", "1h"];
    let commands = [
        &["status"][..],
        &["send", "--app", "a", "--type", "t", "{}"],
        &["dead-letters", "list"],
        &replay,
    ];
    for words in commands {
        for (url, code) in [
            (format!("http://user:hunter2@{closed}/hidden?key=hunter2"), 3),
            ("http://user:hunter2@".to_owned(), 2),
            ("ftp://user:hunter2@127.0.0.1/".to_owned(), 2),
        ] {
            let address = ["--url", &url, "--token", "x"];
            let line = complaint(&ended(&setup, &[words, &address].concat()), code);
            for secret in ["hunter2", "user", "hidden"] {
                assert!(!line.contains(secret), "{words:?}: {line}");
            }
            assert!(code == 2 || line.contains(&closed.to_string()), "{words:?}: {line}");
        }
    }
}

#[test]
fn the_demo_loses_nothing() {
    let setup = Setup::new();
    let output = ended(&setup, &["demo", "--seconds", "4", "--rate", "10"]);
    let text = printed(&output);
    assert!(text.contains("Nothing was lost."), "{text}");
    assert!(text.contains("40 events, 200 deliveries"), "{text}");
    assert!(!setup.folder().join("posthaste-data").exists(), "its folder is elsewhere");
}

#[test]
fn the_benchmark_counts_what_it_sent() {
    let setup = Setup::new();
    let words = ["bench", "--seconds", "1", "--rate", "40", "--apps", "2", "--endpoints", "6"];
    let text = printed(&ended(&setup, &[&words[..], &["--json"]].concat()));
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["accepted"]["count"], 40, "{report:#}");
    assert_eq!(report["delivered"]["count"], 120, "{report:#}");
    assert_eq!(report["lost"], 0, "{report:#}");
    let left = std::fs::read_dir(setup.folder()).unwrap();
    assert_eq!(left.count(), 0, "its folder is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_without_a_worker_leaves_the_work_to_one() {
    let setup = Setup::new().command(&["serve", "--dev", "--no-worker", "--listen", "127.0.0.1:0"]);
    let server = setup.start();
    let receiver = posthaste_testkit::Receiver::always(posthaste_testkit::Reply::ok()).await;
    let application = server.application().await;
    server.endpoint(&application, &receiver.url("/"), serde_json::json!({})).await;
    server.message(&application, "{}").await;
    assert_eq!(server.status().await["pending"], 1);
    let mut worker = setup
        .run(&["worker", "--dev"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    receiver.next_request().await;
    server.status_until(|status| status["delivered_last_hour"] == 1).await;
    terminate(&worker, "TERM");
    assert_eq!(wait(&mut worker).code(), Some(0));
}
