//! Bad input: refused with a status, a code, the field and the reason.

use crate::common::{Server, id_of};
use http::Method;
use posthaste_core::event::OrganisationId;
use posthaste_server::{ApiSettings, ServeLimits};
use serde_json::json;

/// Method, path, body, and the status it must get; `APP` and `EP` stand for paths that exist.
const REFUSED: &[(&str, &str, &str, u16)] = &[
    ("GET", "/", "", 404),
    ("GET", "/api/v1/nothing", "", 404),
    ("POST", "/api/v1/auth/logout", "", 404),
    ("GET", "/ingest/api/v1/source", "", 404),
    ("DELETE", "/api/v1/app", "", 405),
    ("OPTIONS", "/api/v1/app", "", 405),
    ("GET", "/api/v1/app/nobody", "", 404),
    ("GET", "/api/v1/app/%FF", "", 400),
    ("GET", "APP/endpoint/nobody", "", 404),
    ("GET", "APP/msg/nobody", "", 404),
    ("POST", "/api/v1/app", "", 422),
    ("POST", "/api/v1/app", "{", 422),
    ("POST", "/api/v1/app", "[]", 422),
    ("POST", "/api/v1/app", r#"{"name":""}"#, 422),
    ("POST", "/api/v1/app", r#"{"name":"\u0001"}"#, 422),
    ("POST", "/api/v1/app", r#"{"name":"a","uid":"app_1"}"#, 422),
    ("POST", "/api/v1/app", r#"{"name":"a","uid":"LONG"}"#, 422),
    ("POST", "/api/v1/app", r#"{"name":"a","throttleRate":0}"#, 422),
    ("POST", "/api/v1/app", r#"{"name":"a","metadata":{"k":"LONG"}}"#, 422),
    ("POST", "/api/v1/app?get_if_exists=1", r#"{"name":"a"}"#, 400),
    ("POST", "APP/endpoint", r#"{"url":"x"}"#, 422),
    ("POST", "APP/endpoint", r#"{"url":"ftp://a.test"}"#, 422),
    ("POST", "APP/endpoint", r#"{"url":"http://"}"#, 422),
    ("POST", "APP/endpoint", r#"{"url":"http://a","channels":[]}"#, 422),
    ("POST", "APP/msg", r#"{"eventType":"a","payload":[]}"#, 422),
    ("POST", "APP/msg", r#"{"eventType":"a"}"#, 422),
    ("GET", "/api/v1/app?limit=251", "", 422),
    ("GET", "/api/v1/app?limit=x", "", 400),
    ("GET", "/api/v1/app?order=up", "", 400),
    ("GET", "/api/v1/app?iterator=app_x", "", 422),
    ("GET", "/api/v1/app?iterator=-app_x", "", 422),
    ("GET", "APP/msg?iterator=msg_x", "", 422),
    ("GET", "APP/msg?iterator=app_0000000000000000000000", "", 422),
    ("GET", "APP/msg?before=soon", "", 422),
    ("GET", "APP/msg?channel=a%20b", "", 422),
    ("GET", "APP/msg?event_types=a,b%20c", "", 422),
    ("GET", "APP/attempt/endpoint/EP?iterator=atmpt_", "", 422),
    ("GET", "/api/v1/event-type?iterator=a%20b", "", 422),
    ("POST", "APP/endpoint/EP/recover", "", 422),
    ("GET", "/api/v1/background-task/qtask_x", "", 404),
    ("GET", "/api/v1/dead-letter?endpoint=x", "", 422),
];

#[tokio::test]
async fn every_error_is_json_with_a_code_and_a_detail() {
    let server = Server::start().await;
    let application = server.application("App").await;
    let endpoint = server.endpoint(&application).await;
    let long = "x".repeat(4_097);
    for (method, path, body, status) in REFUSED {
        let path = path.replace("APP", &format!("/api/v1/app/{application}"));
        let path = path.replace("EP", &endpoint);
        let body = body.replace("LONG", &long);
        let reply = server.call(method.parse().unwrap(), &path, &body).await;
        assert_eq!(reply.status, *status, "{method} {path} {body}: {}", reply.text());
        assert!(reply.head.contains("content-type: application/json"), "{path}: {}", reply.head);
        let error = reply.json();
        assert!(error["code"].as_str().is_some_and(|code| !code.is_empty()), "{path}");
        if *status != 422 {
            assert!(error["detail"].as_str().is_some_and(|text| !text.is_empty()), "{path}");
            continue;
        }
        assert_eq!(error["code"], "validation", "{path}");
        for problem in error["detail"].as_array().unwrap() {
            assert!(problem["msg"].is_string() && problem["type"].is_string(), "{path}");
            let source = problem["loc"][0].as_str().unwrap();
            assert!(["body", "query", "path"].contains(&source), "{path}: {error}");
        }
    }
}

#[tokio::test]
async fn a_body_within_a_body_is_named_on_the_way_to_its_fields() {
    let server = Server::start().await;
    for (application, field) in [
        (json!({ "name": "", "uid": "new" }), "name"),
        (json!({ "name": "App", "uid": "a b" }), "uid"),
        (json!({ "name": "App", "uid": "new", "throttleRate": 0 }), "throttleRate"),
        (json!({ "name": "App", "uid": "other" }), "uid"),
        (json!({ "name": "App" }), "uid"),
        (json!({ "name": 1 }), "name"),
        (json!({}), "name"),
    ] {
        let message = json!({ "eventType": "a", "payload": {}, "application": application });
        let access = json!({ "application": application });
        for (path, body) in
            [("/api/v1/app/new/msg", message), ("/api/v1/auth/app-portal-access/new", access)]
        {
            let refused = server.post(path, &body.to_string()).await.expect(422);
            let loc = &refused["detail"][0]["loc"];
            assert_eq!(*loc, json!(["body", "application", field]), "{path} {body}");
        }
    }
}

#[tokio::test]
async fn f010_a_secret_with_a_signatures_prefix_is_refused_with_the_reason() {
    let server = Server::start().await;
    let application = server.application("App").await;
    let path = format!("/api/v1/app/{application}/endpoint");
    for (secret, reason) in [
        ("v1,whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "v1,"),
        ("", "empty"),
        ("   ", "empty"),
        ("whsec_c2hvcnQ=", "24"),
    ] {
        let body = json!({ "url": "http://a.test", "secret": secret }).to_string();
        let refused = server.post(&path, &body).await.expect(422);
        assert_eq!(refused["detail"][0]["loc"], json!(["body", "secret"]));
        let message = refused["detail"][0]["msg"].as_str().unwrap();
        assert!(message.contains(reason), "{secret:?} gave {message}");
    }
    let page = server.get(&path).await.expect(200);
    assert_eq!(page["data"], json!([]), "nothing was stored");
}

#[tokio::test]
async fn f041_hosts_are_stored_in_ascii_and_bad_ones_refused() {
    let server = Server::start().await;
    let application = server.application("App").await;
    let path = format!("/api/v1/app/{application}/endpoint");
    for (url, stored) in [
        ("https://ē.nz/hook", Some("https://xn--hea.nz/hook")),
        ("https://xn--hea.nz/hook", Some("https://xn--hea.nz/hook")),
        ("https://BÜCHER.example/", Some("https://xn--bcher-kva.example/")),
        ("https://example。com/", Some("https://example.com/")),
        ("https://℅.example/", None),
        ("https://a b/", None),
    ] {
        let reply = server.post(&path, &json!({ "url": url }).to_string()).await;
        match stored {
            Some(stored) => assert_eq!(reply.expect(201)["url"], stored),
            None => assert_eq!(reply.expect(422)["detail"][0]["loc"], json!(["body", "url"])),
        }
    }
}

#[tokio::test]
async fn f042_long_urls_are_stored_unchanged_up_to_the_limit() {
    let server = Server::start().await;
    let application = server.application("App").await;
    let path = format!("/api/v1/app/{application}/endpoint");
    for length in [255, 256, 1_000, 2_048, 8_000, 8_192, 8_193] {
        let mut url = "http://a.test/?".to_owned();
        url.extend(std::iter::repeat_n('x', length - url.len()));
        let reply = server.post(&path, &json!({ "url": url }).to_string()).await;
        match length {
            8_193 => drop(reply.expect(422)),
            _ => assert_eq!(reply.expect(201)["url"], url.as_str()),
        }
    }
}

#[tokio::test]
async fn f055_a_password_written_back_as_it_was_shown_is_kept() {
    let server = Server::start().await;
    let application = server.application("App").await;
    let path = format!("/api/v1/app/{application}/endpoint");
    let url = "https://user:p%40ss@hooks.test/x?token=abc";
    let created = server.post(&path, &json!({ "url": url }).to_string()).await.expect(201);
    let shown = created["url"].as_str().unwrap();
    assert!(!shown.contains("p%40ss"));
    let one = format!("{path}/{}", id_of(&created));
    for method in [Method::PUT, Method::PATCH] {
        let body = json!({ "url": shown, "description": "new" }).to_string();
        server.call(method, &one, &body).await.expect(200);
        let organisation = OrganisationId::new("org_tests").unwrap();
        let found = server.store.application(&organisation, &application).await.unwrap().unwrap();
        let stored = server.store.endpoint(found.id, &id_of(&created)).await.unwrap().unwrap();
        assert_eq!(stored.url.as_str(), url);
    }
}

#[tokio::test]
async fn only_https_where_it_is_set() {
    let https_only = |settings: &mut ApiSettings| settings.https_only = true;
    let server = Server::start_with(https_only, ServeLimits::default()).await;
    let application = server.application("App").await;
    let path = format!("/api/v1/app/{application}/endpoint");
    server.post(&path, r#"{"url":"http://a.test"}"#).await.expect(422);
    server.post(&path, r#"{"url":"https://a.test"}"#).await.expect(201);
}

#[tokio::test]
async fn f072_a_store_that_is_away_is_said_to_be_so_and_when_to_come_back() {
    let server = Server::start().await;
    server.store.close().await.unwrap();
    let reply = server.post("/api/v1/app", r#"{"name":"App"}"#).await;
    assert!(reply.head.contains("retry-after: 1"), "{}", reply.head);
    assert_eq!(reply.expect(503)["code"], "unavailable");
    let health = server.get("/api/v1/health").await.expect(503);
    assert_eq!(health["database"]["status"], "error");
}

#[tokio::test]
async fn a_client_that_sends_a_lot_sees_why_it_was_refused() {
    let server = Server::start().await;
    let body = format!(r#"{{"name":"{}"}}"#, "x".repeat(3 * 1024 * 1024));
    let refused = server.call_as("no token", Method::POST, "/api/v1/app", &[], &body).await;
    assert_eq!(refused.expect(401)["code"], "authentication_failed");
}
