//! What holds for all requests: errors, tokens, pages, repetition, exact bytes, an orderly end.

mod common;

use common::{Server, id_of, ids_of, keys, token_of};
use http::Method;
use posthaste_core::event::OrganisationId;
use posthaste_core::id::{EndpointId, MessageId, WorkerId};
use posthaste_core::time::{Clock as _, Timestamp};
use posthaste_queue::{FastPath, Job, Room};
use posthaste_server::auth::{self, ApplicationGrant};
use posthaste_server::{ApiSettings, ServeLimits};
use posthaste_store::outbox::LeaseTerms;
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

#[tokio::test]
async fn every_error_is_json_with_a_code_and_a_detail() {
    let server = Server::start().await;
    let application = server.application("App").await;
    let endpoint = server.endpoint(&application).await;
    let app = format!("/api/v1/app/{application}");
    let ep = format!("{app}/endpoint/{endpoint}");
    let long = "x".repeat(257);
    let cases = [
        (Method::GET, "/".to_owned(), String::new(), 404),
        (Method::GET, "/api/v1/nothing".to_owned(), String::new(), 404),
        (Method::POST, "/api/v1/auth/logout".to_owned(), String::new(), 404),
        (Method::GET, "/ingest/api/v1/source".to_owned(), String::new(), 404),
        (Method::DELETE, "/api/v1/app".to_owned(), String::new(), 405),
        (Method::OPTIONS, "/api/v1/app".to_owned(), String::new(), 405),
        (Method::GET, "/api/v1/app/nobody".to_owned(), String::new(), 404),
        (Method::GET, "/api/v1/app/%FF".to_owned(), String::new(), 400),
        (Method::GET, format!("{app}/endpoint/nobody"), String::new(), 404),
        (Method::GET, format!("{app}/msg/nobody"), String::new(), 404),
        (Method::POST, "/api/v1/app".to_owned(), String::new(), 422),
        (Method::POST, "/api/v1/app".to_owned(), "{".to_owned(), 422),
        (Method::POST, "/api/v1/app".to_owned(), "[]".to_owned(), 422),
        (Method::POST, "/api/v1/app".to_owned(), r#"{"name":""}"#.to_owned(), 422),
        (Method::POST, "/api/v1/app".to_owned(), r#"{"name":"\u0001"}"#.to_owned(), 422),
        (Method::POST, "/api/v1/app".to_owned(), r#"{"name":"a","uid":"app_1"}"#.to_owned(), 422),
        (
            Method::POST,
            "/api/v1/app".to_owned(),
            r#"{"name":"a","throttleRate":0}"#.to_owned(),
            422,
        ),
        (Method::POST, "/api/v1/app?get_if_exists=1".to_owned(), r#"{"name":"a"}"#.to_owned(), 400),
        (Method::POST, "/api/v1/app".to_owned(), format!(r#"{{"name":"a","uid":"{long}"}}"#), 422),
        (
            Method::POST,
            "/api/v1/app".to_owned(),
            format!(r#"{{"name":"a","metadata":{{"k":"{}"}}}}"#, "v".repeat(4_096)),
            422,
        ),
        (Method::POST, format!("{app}/endpoint"), r#"{"url":"x"}"#.to_owned(), 422),
        (Method::POST, format!("{app}/endpoint"), r#"{"url":"ftp://a.test"}"#.to_owned(), 422),
        (Method::POST, format!("{app}/endpoint"), r#"{"url":"http://"}"#.to_owned(), 422),
        (
            Method::POST,
            format!("{app}/endpoint"),
            r#"{"url":"http://a","channels":[]}"#.to_owned(),
            422,
        ),
        (Method::POST, format!("{app}/msg"), r#"{"eventType":"a","payload":[]}"#.to_owned(), 422),
        (Method::POST, format!("{app}/msg"), r#"{"eventType":"a"}"#.to_owned(), 422),
        (Method::GET, "/api/v1/app?limit=251".to_owned(), String::new(), 422),
        (Method::GET, "/api/v1/app?limit=x".to_owned(), String::new(), 400),
        (Method::GET, "/api/v1/app?order=up".to_owned(), String::new(), 400),
        (Method::GET, "/api/v1/app?iterator=app_x".to_owned(), String::new(), 422),
        (Method::GET, "/api/v1/app?iterator=-app_x".to_owned(), String::new(), 422),
        (Method::GET, format!("{app}/msg?iterator=msg_x"), String::new(), 422),
        (Method::GET, format!("{app}/msg?iterator={endpoint}"), String::new(), 422),
        (Method::GET, format!("{app}/msg?before=soon"), String::new(), 422),
        (Method::GET, format!("{app}/msg?channel=a%20b"), String::new(), 422),
        (Method::GET, format!("{app}/msg?event_types=a,b%20c"), String::new(), 422),
        (
            Method::GET,
            format!("{app}/attempt/endpoint/{endpoint}?iterator=atmpt_"),
            String::new(),
            422,
        ),
        (Method::GET, "/api/v1/event-type?iterator=a%20b".to_owned(), String::new(), 422),
        (Method::POST, format!("{ep}/recover"), String::new(), 422),
        (Method::GET, "/api/v1/background-task/qtask_x".to_owned(), String::new(), 404),
        (Method::GET, "/api/v1/dead-letter?endpoint=x".to_owned(), String::new(), 422),
    ];
    for (method, path, body, status) in cases {
        let reply = server.call(method.clone(), &path, &body).await;
        assert_eq!(reply.status, status, "{method} {path} {body}: {}", reply.text());
        assert!(reply.head.contains("content-type: application/json"), "{path}: {}", reply.head);
        let error = reply.json();
        assert!(error["code"].as_str().is_some_and(|code| !code.is_empty()), "{path}");
        if status == 422 {
            assert_eq!(error["code"], "validation", "{path}");
            for problem in error["detail"].as_array().unwrap() {
                assert!(problem["msg"].is_string() && problem["type"].is_string(), "{path}");
                let source = problem["loc"][0].as_str().unwrap();
                assert!(["body", "query", "path"].contains(&source), "{path}: {error}");
            }
        } else {
            assert!(error["detail"].as_str().is_some_and(|text| !text.is_empty()), "{path}");
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
async fn who_may_do_what() {
    let server = Server::start().await;
    let own = server.application("Own").await;
    let other = server.application("Other").await;
    let endpoint = server.endpoint(&own).await;
    let message = server.message(&own).await;
    let organisation = OrganisationId::new("org_tests").unwrap();
    let mint = |read_only| {
        let application = own.parse().unwrap();
        let feature_flags = &[];
        let organisation = &organisation;
        let grant = ApplicationGrant { organisation, application, feature_flags, read_only };
        auth::mint_application(&keys(), &grant, server.clock.now(), Duration::from_secs(3_600))
    };
    let (owner, reader) = (mint(false), mint(true));
    let app = format!("/api/v1/app/{own}");
    let ep = format!("{app}/endpoint/{endpoint}");
    let body =
        r#"{"name":"x","url":"http://a.test","description":"","eventType":"a","payload":{}}"#;
    for (method, path, by_owner, by_reader) in [
        (Method::GET, app.clone(), 200, 200),
        (Method::GET, format!("{app}/endpoint"), 200, 200),
        (Method::POST, format!("{app}/endpoint"), 201, 403),
        (Method::PATCH, ep.clone(), 200, 403),
        (Method::GET, format!("{ep}/secret"), 200, 200),
        (Method::GET, format!("{app}/msg/{message}"), 200, 200),
        (Method::POST, format!("{app}/msg/{message}/endpoint/{endpoint}/resend"), 202, 403),
        (Method::GET, "/api/v1/event-type".to_owned(), 200, 200),
        (Method::POST, "/api/v1/event-type".to_owned(), 403, 403),
        (Method::GET, "/api/v1/app".to_owned(), 403, 403),
        (Method::POST, "/api/v1/app".to_owned(), 403, 403),
        (Method::PUT, app.clone(), 403, 403),
        (Method::DELETE, app.clone(), 403, 403),
        (Method::POST, format!("{app}/msg"), 403, 403),
        (Method::POST, format!("/api/v1/auth/app-portal-access/{own}"), 403, 403),
        (Method::GET, "/api/v1/status".to_owned(), 403, 403),
        (Method::GET, format!("/api/v1/app/{other}"), 404, 404),
        (Method::GET, format!("/api/v1/app/{other}/endpoint"), 404, 404),
    ] {
        let body = if method == Method::GET { "" } else { body };
        for (token, status) in [(&owner, by_owner), (&reader, by_reader)] {
            let reply = server.call_as(token, method.clone(), &path, &[], body).await;
            assert_eq!(reply.status, status, "{method} {path}: {}", reply.text());
        }
    }
    // Another organisation sees nothing of this one.
    let stranger = token_of("org_stranger");
    for path in [app.clone(), ep, format!("{app}/msg/{message}")] {
        server.call_as(&stranger, Method::GET, &path, &[], "").await.expect(404);
    }
    for token in ["", "x", "a.b.c"] {
        let refused = server.call_as(token, Method::GET, &app, &[], "").await.expect(401);
        assert_eq!(refused["code"], "authentication_failed");
    }
}

/// Walks a list forward by `iterator`, then back by `prevIterator`; returns both.
async fn walk(server: &Server, path: &str, limit: usize) -> (Vec<String>, Vec<String>) {
    let query = if path.contains('?') { '&' } else { '?' };
    let base = format!("{path}{query}limit={limit}");
    let mut forward = Vec::new();
    let mut page = server.get(&base).await.expect(200);
    loop {
        forward.extend(ids_of(&page));
        if page["done"] == true {
            break;
        }
        let next = page["iterator"].as_str().unwrap().to_owned();
        page = server.get(&format!("{base}&iterator={next}")).await.expect(200);
    }
    // From the last page back to the first; each page is in the list's own order.
    let mut back = ids_of(&page);
    loop {
        let before = page["prevIterator"].as_str().unwrap().to_owned();
        page = server.get(&format!("{base}&iterator={before}")).await.expect(200);
        let mut ids = ids_of(&page);
        let done = page["done"] == true;
        ids.append(&mut back);
        back = ids;
        if done {
            break;
        }
    }
    (forward, back)
}

#[tokio::test]
async fn lists_are_walked_forward_and_back_without_gap_or_repetition() {
    let server = Server::start().await;
    let mut applications = Vec::new();
    for index in 0..7 {
        applications.push(server.application(&format!("App {index}")).await);
    }
    let application = applications[0].clone();
    let mut endpoints = Vec::new();
    let mut messages = Vec::new();
    for _ in 0..6 {
        endpoints.push(server.endpoint(&application).await);
    }
    for _ in 0..6 {
        messages.push(server.message(&application).await);
    }
    server.work(200, b"").await;
    let newest_first = |ids: &[String]| ids.iter().rev().cloned().collect::<Vec<_>>();
    let app = format!("/api/v1/app/{application}");
    let lists = [
        ("/api/v1/app".to_owned(), applications.clone()),
        ("/api/v1/app?order=descending".to_owned(), newest_first(&applications)),
        (format!("{app}/endpoint"), newest_first(&endpoints)),
        (format!("{app}/endpoint?order=ascending"), endpoints.clone()),
        (format!("{app}/msg"), newest_first(&messages)),
        (format!("{app}/endpoint/{}/msg", endpoints[0]), newest_first(&messages)),
        (format!("{app}/msg/{}/endpoint", messages[0]), endpoints.clone()),
    ];
    for (path, expected) in lists {
        for limit in [1, 2, 3, 6, 7, 50] {
            let (forward, back) = walk(&server, &path, limit).await;
            assert_eq!(forward, expected, "{path} by {limit}");
            assert_eq!(back, expected, "{path} back by {limit}");
        }
    }
    let attempts = format!("{app}/attempt/endpoint/{}", endpoints[0]);
    let (forward, back) = walk(&server, &attempts, 4).await;
    assert_eq!(forward, back);
    assert_eq!(forward.iter().collect::<BTreeSet<_>>().len(), 6);

    let empty = server.get("/api/v1/app?limit=0").await.expect(200);
    assert_eq!(empty, json!({"data": [], "iterator": null, "done": false}));
    let none = server.get("/api/v1/event-type").await.expect(200);
    assert_eq!(none, json!({"data": [], "iterator": null, "done": true}));
}

#[tokio::test]
async fn messages_are_filtered_by_time_type_and_channel() {
    let server = Server::start().await;
    let application = server.application("App").await;
    let path = format!("/api/v1/app/{application}/msg");
    let mut messages = Vec::new();
    for (name, channels) in [("a", "null"), ("b", r#"["x"]"#), ("c", r#"["x","y"]"#)] {
        server.clock.advance(Duration::from_secs(60));
        let body = format!(r#"{{"eventType":"{name}","payload":{{}},"channels":{channels}}}"#);
        messages.push(server.post(&path, &body).await.expect(202));
    }
    let ids: Vec<_> = messages.iter().map(id_of).collect();
    let time = |index: usize| messages[index]["timestamp"].as_str().unwrap().to_owned();
    for (query, expected) in [
        ("event_types=a".to_owned(), vec![0]),
        ("event_types=a,c".to_owned(), vec![2, 0]),
        ("event_types[]=a&event_types[]=b".to_owned(), vec![1, 0]),
        ("channel=x".to_owned(), vec![2, 1]),
        ("channel=z".to_owned(), vec![]),
        (format!("before={}", time(1)), vec![0]),
        (format!("after={}", time(1)), vec![2, 1]),
        // With `after` alone: the page nearest to it.
        (format!("after={}&limit=1", time(1)), vec![1]),
        (format!("after={}&before={}", time(0), time(2)), vec![1, 0]),
    ] {
        let page = server.get(&format!("{path}?{query}")).await.expect(200);
        let expected: Vec<_> = expected.into_iter().map(|index: usize| &ids[index]).collect();
        assert_eq!(ids_of(&page).iter().collect::<Vec<_>>(), expected, "{query}");
    }
}

#[tokio::test]
async fn f005_the_payload_comes_back_byte_for_byte() {
    let server = Server::start().await;
    let application = server.application("App").await;
    let path = format!("/api/v1/app/{application}/msg");
    for payload in [
        r#"{"b": 1, "a": "é 😊", "n": 1.0}"#,
        r#"{"z":1,"a":2,"m":{"y":1.0,"b":9007199254740993},"a2":1e2,"dup":1,"dup":2}"#,
    ] {
        let body = format!(r#"{{"eventType": "a", "payload": {payload} }}"#);
        let created = server.post(&path, &body).await;
        assert_eq!(created.status, 202);
        assert!(created.text().contains(&format!(r#""payload":{payload},"#)), "{}", created.text());
        let read = server.get(&format!("{path}/{}", id_of(&created.json()))).await;
        assert_eq!(read.text(), created.text());
        let brief = server.post(&format!("{path}?with_content=false"), &body).await.expect(202);
        assert_eq!(brief["payload"], json!({}));
    }
}

#[tokio::test]
async fn f101_the_largest_payload_is_accepted_and_one_byte_more_is_not() {
    let server = Server::start().await;
    let application = server.application("App").await;
    let path = format!("/api/v1/app/{application}/msg?with_content=false");
    let limit = posthaste_core::limits::PAYLOAD_BYTES_MAX;
    for (bytes, status) in [(limit, 202), (limit + 1, 413), (2 * limit, 413), (4 * limit, 413)] {
        let filler = "x".repeat(bytes - r#"{"x":""}"#.len());
        let body = format!(r#"{{"eventType":"a","payload":{{"x":"{filler}"}}}}"#);
        let reply = server.post(&path, &body).await;
        assert_eq!(reply.status, status, "{bytes} bytes: {}", reply.text());
        if status == 413 {
            let error = reply.json();
            assert_eq!(error["code"], "payload_too_large");
            assert!(error["detail"].as_str().unwrap().contains("bytes"), "{error}");
        }
    }
}

#[tokio::test]
async fn an_event_id_is_taken_once_per_application() {
    let server = Server::start().await;
    let (one, other) = (server.application("1").await, server.application("2").await);
    let body = r#"{"eventType":"a","eventId":"e-1","payload":{}}"#;
    let path = format!("/api/v1/app/{one}/msg");
    let created = server.post(&path, body).await.expect(202);
    assert_eq!(server.post(&path, body).await.expect(409)["code"], "conflict");
    assert_eq!(server.get(&format!("{path}/e-1")).await.expect(200), created);
    server.post(&format!("/api/v1/app/{other}/msg"), body).await.expect(202);
}

#[tokio::test]
async fn a_message_may_bring_its_application() {
    let server = Server::start().await;
    let body = r#"{"eventType":"a","payload":{},"application":{"name":"N","uid":"new"}}"#;
    server.post("/api/v1/app/new/msg", body).await.expect(202);
    server.post("/api/v1/app/new/msg", body).await.expect(202);
    assert_eq!(server.get("/api/v1/app/new").await.expect(200)["name"], "N");
    let refused = server.post("/api/v1/app/newer/msg", body).await.expect(422);
    assert_eq!(refused["detail"][0]["type"], "application_uid_mismatch");
}

async fn with_key(server: &Server, path: &str, key: &str, body: &str) -> common::Reply {
    let headers = [("idempotency-key", key)];
    server.call_as(&server.token, Method::POST, path, &headers, body).await
}

#[tokio::test]
async fn f048_the_same_key_publishes_once() {
    let server = Server::start().await;
    let application = server.application("App").await;
    let path = format!("/api/v1/app/{application}/msg");
    let body = r#"{"eventType":"a","payload":{"n": 1.0}}"#;
    let first = with_key(&server, &path, "k1", body).await;
    assert_eq!(first.status, 202);
    // A slash at the end is no difference.
    let second = with_key(&server, &format!("{path}/"), "k1", body).await;
    assert_eq!((second.status, second.text()), (202, first.text()));
    let other = r#"{"eventType":"a","payload":{"n": 2.0}}"#;
    let refused = with_key(&server, &path, "k1", other).await.expect(422);
    assert_eq!(refused["detail"][0]["loc"], json!(["header", "idempotency-key"]));

    let tries = (0..8).map(|_| with_key(&server, &path, "k2", body));
    let mut replies = Vec::new();
    for reply in join_all(tries).await {
        replies.push(reply.expect(202));
    }
    assert!(replies.iter().all(|reply| *reply == replies[0]), "{replies:?}");
    let listed = server.get(&path).await.expect(200);
    assert_eq!(listed["data"].as_array().unwrap().len(), 2);
    // Another organisation's key of the same name is another key.
    let long = "k".repeat(257);
    with_key(&server, &path, &long, body).await.expect(422);
    let (one, two) =
        (with_key(&server, &path, "", body).await, with_key(&server, &path, "", body).await);
    assert_ne!(one.expect(202)["id"], two.expect(202)["id"], "an empty key is no key");
}

#[tokio::test]
async fn the_same_key_creates_once() {
    let server = Server::start().await;
    let body = r#"{"name":"App"}"#;
    let tries = (0..6).map(|_| with_key(&server, "/api/v1/app", "k1", body));
    let mut ids = BTreeSet::new();
    for reply in join_all(tries).await {
        ids.insert(id_of(&reply.expect(201)));
    }
    assert_eq!(ids.len(), 1);
    with_key(&server, "/api/v1/app", "k1", r#"{"name":"Other"}"#).await.expect(422);
    // What failed may be made again, with another body too.
    with_key(&server, "/api/v1/app", "k2", "{}").await.expect(422);
    with_key(&server, "/api/v1/app", "k2", body).await.expect(201);
}

async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut waiting: Vec<_> = futures.map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = waiting.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, output) in waiting.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let std::task::Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *output = Some(ready);
            }
        }
        if outputs.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

#[tokio::test]
async fn slashes_at_the_end_and_browsers() {
    let server = Server::start().await;
    for path in ["/api/v1/app", "/api/v1/app/", "/api/v1/app//", "/api/v1/app///?limit=1"] {
        let reply = server.get(path).await;
        assert!(reply.head.contains("access-control-allow-origin: *"), "{}", reply.head);
        reply.expect(200);
    }
    let asked = [
        ("origin", "https://else.test"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type"),
    ];
    for path in ["/api/v1/app", "/api/v1/nothing"] {
        let reply = server.call_as("", Method::OPTIONS, path, &asked, "").await;
        assert_eq!(reply.status, 200);
        assert!(reply.head.contains("access-control-allow-headers: authorization,content-type"));
        assert!(reply.head.contains("access-control-max-age: 600"));
    }
}

/// A worker that takes everything and remembers what it was given.
#[derive(Default)]
struct Taker {
    reserved: AtomicUsize,
    released: AtomicUsize,
    taken: Mutex<Vec<MessageId>>,
}

impl FastPath for Taker {
    fn terms(&self) -> Option<LeaseTerms> {
        let worker_id = WorkerId::from_bytes([7; 16]);
        Some(LeaseTerms { worker_id, until: Timestamp::MAX })
    }

    fn reserve(&self, endpoint_id: EndpointId, bytes: usize) -> Option<Room> {
        self.reserved.fetch_add(1, Ordering::SeqCst);
        Some(Room { endpoint_id, bytes })
    }

    fn hand_over(&self, jobs: Vec<Job>) {
        self.taken.lock().unwrap().extend(jobs.iter().map(|job| job.message.id));
    }

    fn release(&self, _: Room) {
        self.released.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn what_is_accepted_is_handed_over_and_what_is_refused_is_not() {
    let server = Server::start().await;
    let taker = Arc::new(Taker::default());
    server.queue.attach(taker.clone());
    let application = server.application("App").await;
    server.endpoint(&application).await;
    server.endpoint(&application).await;
    let path = format!("/api/v1/app/{application}/msg");
    let body = r#"{"eventType":"a","eventId":"e-1","payload":{}}"#;
    let message: MessageId = id_of(&server.post(&path, body).await.expect(202)).parse().unwrap();
    server.post(&path, body).await.expect(409);
    assert_eq!(*taker.taken.lock().unwrap(), [message, message]);
    assert_eq!(taker.reserved.load(Ordering::SeqCst), 4);
    assert_eq!(taker.released.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_stop_finishes_what_is_under_way_and_takes_nothing_new() {
    let mut server = Server::start().await;
    let mut half = TcpStream::connect(server.address).await.unwrap();
    let body = r#"{"name":"late"}"#;
    let head = format!(
        "POST /api/v1/app HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\
         expect: 100-continue\r\n\r\n",
        server.token,
        body.len()
    );
    half.write_all(head.as_bytes()).await.unwrap();
    // The interim answer tells that the handler has the request and waits for its body.
    let mut interim = [0; 25];
    half.read_exact(&mut interim).await.unwrap();
    assert!(interim.starts_with(b"HTTP/1.1 100 "));
    server.stop();
    half.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    half.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    tokio::time::timeout(posthaste_testkit::PATIENCE, &mut server.running)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_client_that_says_nothing_more() {
    let limits =
        ServeLimits { drain_time_max: Duration::from_millis(50), ..ServeLimits::default() };
    let mut server = Server::start_with(|_| {}, limits).await;
    let mut half = TcpStream::connect(server.address).await.unwrap();
    half.write_all(b"POST /api/v1/app HTTP/1.1\r\nhost: x\r\n").await.unwrap();
    server.stop();
    let ended = tokio::time::timeout(posthaste_testkit::PATIENCE, &mut server.running);
    ended.await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_head_that_never_ends_is_cut_off() {
    let limits = ServeLimits { head_time_max: Duration::from_millis(50), ..ServeLimits::default() };
    let server = Server::start_with(|_| {}, limits).await;
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(b"GET /api/v1/health HTTP/1.1\r\nx-slow: ").await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(posthaste_testkit::PATIENCE, slow.read_to_end(&mut answer));
    // Whether by an answer or a reset: it ends.
    let _ = read.await.unwrap();
    server.get("/api/v1/health").await.expect(200);
}

#[tokio::test]
async fn more_connections_than_allowed_wait_their_turn() {
    let limits = ServeLimits { connections_max: 1, ..ServeLimits::default() };
    let server = Server::start_with(|_| {}, limits).await;
    let ping = b"GET /api/v1/health/ping HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut first = TcpStream::connect(server.address).await.unwrap();
    let mut answer = [0; 4_096];
    first.write_all(ping).await.unwrap();
    assert!(first.read(&mut answer).await.unwrap() > 0);
    // The only place is taken; the second asks, and the first goes on being served.
    let mut second = TcpStream::connect(server.address).await.unwrap();
    second.write_all(ping).await.unwrap();
    for _ in 0..50 {
        first.write_all(ping).await.unwrap();
        assert!(first.read(&mut answer).await.unwrap() > 0);
    }
    let none = second.try_read(&mut answer).unwrap_err();
    assert_eq!(none.kind(), std::io::ErrorKind::WouldBlock);
    drop(first);
    assert!(second.read(&mut answer).await.unwrap() > 0);
}
