//! `posthaste.enqueue`: messages that appear if and only if an application's own transaction
//! commits.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]

mod common;

use common::database::{Database, psql, server_url};
use common::facts::by_message;
use common::{Posthaste, Setup};
use posthaste_testkit::{Receiver, Reply};
use serde_json::{Value, json};
use std::process::Command;

fn setup() -> Setup {
    let api = ["serve", "--dev", "--no-worker", "--listen", "127.0.0.1:0"];
    Setup::on(Database::on_postgres()).command(&api)
}

/// The id of an application with this uid.
async fn application(server: &Posthaste, uid: &str) -> String {
    let body = json!({ "name": "test", "uid": uid });
    let (status, answer) = server.api("POST", "/api/v1/app", body).await;
    assert_eq!(status, 201, "{answer}");
    answer["id"].as_str().unwrap().to_owned()
}

fn waiting(setup: &Setup) -> String {
    setup.database().sql("SELECT count(*) FROM posthaste.enqueued")
}

/// What PostgreSQL complains about, with its code.
fn refusal(setup: &Setup, arguments: &str) -> (String, String) {
    let script = format!(
        "CREATE TEMPORARY TABLE told (code text, words text);
         DO $do$ DECLARE words text; BEGIN
             PERFORM posthaste.enqueue({arguments});
         EXCEPTION WHEN OTHERS THEN
             GET STACKED DIAGNOSTICS words = MESSAGE_TEXT;
             INSERT INTO told VALUES (SQLSTATE, words);
         END $do$;
         SELECT code || ' ' || words FROM told"
    );
    let told = setup.database().sql(&script);
    let (code, words) = told.split_once(' ').unwrap_or_else(|| panic!("{arguments} was taken"));
    (code.to_owned(), words.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_commits_is_delivered_and_what_does_not_is_not() {
    let receiver = Receiver::always(Reply::ok()).await;
    let setup = setup();
    let server = setup.start();
    let _worker = setup.worker().start();
    let application = application(&server, "acme").await;
    server.endpoint(&application, &receiver.url("/"), json!({})).await;
    let sql = |text: &str| setup.database().sql(text);
    sql("BEGIN; SELECT posthaste.enqueue('acme', 'order.paid', '{\"rolled\":\"back\"}'); ROLLBACK");
    let payload = r#"{"b": 1.0, "a" :"é \u0000", "b":2}"#;
    let ids = sql(&format!(
        "BEGIN;
         SELECT posthaste.enqueue('acme', 'order.paid', '{payload}', event_id => 'order-1');
         SAVEPOINT one;
         SELECT posthaste.enqueue('acme', 'order.paid', '{{\"savepoint\":1}}', event_id => 'x');
         ROLLBACK TO one;
         SELECT posthaste.enqueue('{application}', 'order.sent', '{{\"n\":2}}'::text, 'x');
         COMMIT"
    ));
    let ids: Vec<&str> = ids.lines().collect();
    receiver.wait_for(2).await;
    let status = server.status_until(|status| status["delivered_last_hour"] == 2).await;
    assert_eq!((&status["pending"], &status["dead_letter"]), (&json!(0), &json!(0)));
    let requests = receiver.requests();
    assert_eq!(requests.len(), 2);
    let sent = by_message(&requests);
    assert!(sent.contains_key(ids[0]) && sent.contains_key(ids[2]), "{ids:?} {sent:?}");
    let first = requests.iter().find(|it| it.header("webhook-id").as_deref() == Some(ids[0]));
    assert_eq!(first.unwrap().body, payload.as_bytes());
    let path = format!("/api/v1/app/{application}/msg/order-1");
    let (_, message) = server.api("GET", &path, Value::Null).await;
    assert_eq!((&message["id"], &message["eventType"]), (&json!(ids[0]), &json!("order.paid")));
    assert_eq!(waiting(&setup), "0");
}

/// Types, channels and disabled endpoints count as they do for the API.
#[tokio::test(flavor = "multi_thread")]
async fn routes_are_those_of_the_api() {
    let receiver = Receiver::always(Reply::ok()).await;
    let setup = setup();
    let server = setup.start();
    let application = application(&server, "acme").await;
    let body = json!({ "name": "b", "description": "" });
    let (status, answer) = server.api("POST", "/api/v1/event-type", body).await;
    assert_eq!(status, 201, "{answer}");
    for (path, more) in [
        ("/all", json!({})),
        ("/type", json!({ "filterTypes": ["b"] })),
        ("/channel", json!({ "channels": ["red"] })),
        ("/disabled", json!({ "disabled": true })),
    ] {
        server.endpoint(&application, &receiver.url(path), more).await;
    }
    setup.database().sql(
        "SELECT posthaste.enqueue('acme', 'a', '{}');
         SELECT posthaste.enqueue('acme', 'b', '{}', channels => ARRAY['blue', 'red'])",
    );
    let _worker = setup.worker().start();
    let status = server.status_until(|status| status["delivered_last_hour"] == 4).await;
    assert_eq!(status["held"], 2, "{status}");
    let mut paths: Vec<String> = receiver.requests().iter().map(|it| it.path()).collect();
    paths.sort();
    assert_eq!(paths, ["/all", "/all", "/channel", "/type"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_are_each_accepted_once() {
    const CALLERS: usize = 8;
    const EACH: usize = 50;
    let receiver = Receiver::always(Reply::ok()).await;
    let setup = setup();
    let server = setup.start();
    let workers = [setup.worker().start(), setup.worker().start(), setup.worker().start()];
    let application = application(&server, "acme").await;
    server.endpoint(&application, &receiver.url("/"), json!({})).await;
    let url = setup.database().url().unwrap();
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let url = url.clone();
            // All want the same event ids, and only one gets each.
            let script = format!(
                "DO $do$ BEGIN FOR n IN 1..{EACH} LOOP
                     PERFORM posthaste.enqueue('acme', 'a', '{{}}');
                     BEGIN
                         PERFORM posthaste.enqueue('acme', 'a', '{{\"by\":{caller}}}', 'e' || n);
                     EXCEPTION WHEN unique_violation THEN NULL;
                     END;
                     COMMIT;
                 END LOOP; END $do$"
            );
            tokio::task::spawn_blocking(move || psql(&url, &script))
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    let expected = CALLERS * EACH + EACH;
    server.status_until(|status| status["delivered_last_hour"] == expected).await;
    let sent = by_message(&receiver.requests());
    assert_eq!(sent.len(), expected);
    assert!(sent.values().all(|count| *count == 1));
    assert_eq!(waiting(&setup), "0");
    for worker in workers {
        assert!(worker.events("janitor.take_in_failed").is_empty(), "{:?}", worker.log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_api_would_refuse_fails_the_callers_transaction() {
    let setup = setup();
    let server = setup.start();
    application(&server, "acme").await;
    for (arguments, code, words) in [
        ("'nobody', 'a', '{}'", "P0002", "no application \"nobody\""),
        ("'app_1', 'a', '{}'", "P0002", "no application"),
        ("NULL, 'a', '{}'", "22023", "application"),
        ("'acme', 'a', '{}', organisation => 'org_other'", "P0002", "no application"),
        ("'acme', 'a b', '{}'", "22023", "event_type"),
        ("'acme', '', '{}'", "22023", "event_type"),
        ("'acme', repeat('a', 257), '{}'", "22023", "event_type"),
        ("'acme', E'a\\n', '{}'", "22023", "event_type"),
        ("'acme', NULL, '{}'", "22023", "event_type"),
        ("'acme', 'a', NULL::text", "22023", "payload"),
        ("'acme', 'a', '{'", "22023", "JSON object"),
        ("'acme', 'a', '[1]'", "22023", "JSON object"),
        ("'acme', 'a', ''", "22023", "JSON object"),
        ("'acme', 'a', decode('7b22ff227d', 'hex')", "22023", "JSON object"),
        ("'acme', 'a', '{\"a\":\"' || repeat('x', 5242873) || '\"}'", "54000", "5242880"),
        ("'acme', 'a', repeat('{\"a\":', 100000) || '1' || repeat('}', 100000)", "54000", "nested"),
        ("'acme', 'a', E' \\n '", "22023", "JSON object"),
        ("'acme', 'a', E'\\v{}'", "22023", "JSON object"),
        ("'acme', 'a', '{}', 'msg_1'", "22023", "event_id"),
        ("'acme', 'a', '{}', 'é'", "22023", "event_id"),
        ("'acme', 'a', '{}', channels => '{}'", "22023", "channels"),
        ("'acme', 'a', '{}', channels => '{1,2,3,4,5,6}'", "22023", "channels"),
        ("'acme', 'a', '{}', channels => ARRAY['a', 'b c']", "22023", "channel"),
        ("'acme', 'a', '{}', channels => ARRAY['a', NULL]", "22023", "channel"),
    ] {
        let told = refusal(&setup, arguments);
        assert!(told.0 == code && told.1.contains(words), "{arguments}: {told:?}");
    }
    let largest = "'{\"a\":\"' || repeat('x', 5242872) || '\"}'";
    // White space around it does not count, as with the API.
    let padded = format!("E' \\r\\n\\t' || {largest} || ' '");
    setup.database().sql(&format!("SELECT posthaste.enqueue('acme', 'a', {padded}, 'e1')"));
    let kept = setup.database().sql("SELECT octet_length(payload) FROM posthaste.enqueued");
    assert_eq!(kept, "5242880");
    let told = refusal(&setup, "'acme', 'a', '{}', 'e1'");
    assert!(told.0 == "23505" && told.1.contains("\"e1\""), "{told:?}");
    let _worker = setup.worker().start();
    server.get_until("/api/v1/app/acme/msg/e1", |message| message["eventId"] == "e1").await;
    let told = refusal(&setup, "'acme', 'a', '{}', 'e1'");
    assert!(told.0 == "23505" && told.1.contains("\"e1\""), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_uid_of_two_organisations_needs_one_of_them() {
    let setup = setup();
    let server = setup.start();
    application(&server, "acme").await;
    setup.database().sql(
        "INSERT INTO posthaste.application
         SELECT gen_random_uuid(), 'org_other', uid, name, throttle_rate, metadata,
             routes_version, created_at, updated_at, deleted_at FROM posthaste.application",
    );
    let told = refusal(&setup, "'acme', 'a', '{}'");
    assert!(told.1.contains("2 organisations"), "{told:?}");
    let named = "SELECT posthaste.enqueue('acme', 'a', '{}', organisation => 'org_other')";
    assert!(setup.database().sql(named).starts_with("msg_"));
}

/// A message whose application went away in between is not lost without a word.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_accepted_any_more_stays_and_is_told() {
    let setup = setup();
    let server = setup.start();
    let gone = application(&server, "gone").await;
    application(&server, "acme").await;
    let sql = |text: &str| setup.database().sql(text);
    let id = sql("SELECT posthaste.enqueue('gone', 'a', '{}')");
    sql("SELECT posthaste.enqueue('acme', 'a', '{\"from\":\"sql\"}', 'e1')");
    let (status, _) = server.api("DELETE", &format!("/api/v1/app/{gone}"), Value::Null).await;
    assert_eq!(status, 204);
    let body = json!({ "eventType": "a", "payload": {}, "eventId": "e1" });
    let (status, _) = server.api("POST", "/api/v1/app/acme/msg", body).await;
    assert_eq!(status, 202);
    // Not written by the function.
    sql("INSERT INTO posthaste.enqueued (message_id, application_id, event_type, payload)
         SELECT posthaste.new_message_id(), gen_random_uuid(), 'a b', ''");
    sql("SELECT posthaste.enqueue('acme', 'a', '{}', 'e2')");
    let worker = setup.worker().start();
    server.get_until("/api/v1/app/acme/msg/e2", |message| message["eventId"] == "e2").await;
    let why = sql("SELECT refused FROM posthaste.enqueued ORDER BY message_id");
    let why: Vec<&str> = why.lines().collect();
    assert_eq!(why.len(), 3, "{why:?}");
    assert!(why[0].contains("deleted") && why[1].contains("event id"), "{why:?}");
    assert!(why[2].contains("posthaste.enqueue"), "{why:?}");
    let told = worker.events("janitor.enqueued_refused");
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[0].to_string().contains(&id), "{told:?}");
}

/// The application's own role may call the function, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_needs_no_more_than_the_function() {
    let setup = setup();
    let server = setup.start();
    application(&server, "acme").await;
    let sql = |text: &str| setup.database().sql(text);
    let name = sql("SELECT current_database()");
    let role = format!("shop_{name}");
    sql(&format!("CREATE ROLE {role}"));
    let call = "SELECT posthaste.enqueue('acme', 'a', '{}')";
    let as_shop = |text: &str| {
        let script = format!("SET ROLE {role}; {text}");
        let program = std::env::var("POSTHASTE_TEST_POSTGRES_BIN").unwrap() + "/psql";
        let url = setup.database().url().unwrap();
        let words = ["-X", "-q", "-w", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", &script, &url];
        Command::new(program).args(words).output().unwrap()
    };
    assert!(!as_shop(call).status.success());
    sql(&format!(
        "GRANT USAGE ON SCHEMA posthaste TO {role};
         GRANT EXECUTE ON FUNCTION
             posthaste.enqueue(text, text, text, text, text[], text) TO {role}"
    ));
    let done = as_shop(call);
    assert!(done.status.success(), "{done:?}");
    for other in ["SELECT secrets FROM posthaste.endpoint", "DELETE FROM posthaste.enqueued"] {
        assert!(!as_shop(other).status.success(), "{other}");
    }
    drop(server);
    sql(&format!("DROP OWNED BY {role}"));
    psql(&server_url(), &format!("DROP ROLE {role}"));
}
