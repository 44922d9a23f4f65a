//! Every operation of tier 1 answers as the client libraries expect, and the document has them all.

use crate::common::{Server, id_of, ids_of, token_of};
use http::Method;
use serde_json::{Value, json};

#[tokio::test]
async fn applications() {
    let server = Server::start().await;
    let body = r#"{"name":"One","uid":"one","throttleRate":5,"metadata":{"a":"b"},"tags":[1]}"#;
    let created = server.post("/api/v1/app", body).await.expect(201);
    assert_eq!(created["uid"], "one");
    assert_eq!((&created["throttleRate"], &created["rateLimit"]), (&json!(5), &json!(5)));
    assert_eq!(created["metadata"], json!({"a": "b"}));
    let by_id = server.get(&format!("/api/v1/app/{}", id_of(&created))).await.expect(200);
    let by_uid = server.get("/api/v1/app/one/").await.expect(200);
    assert_eq!((&by_id, &by_uid), (&created, &created));

    let again = server.post("/api/v1/app", body).await.expect(409);
    assert_eq!(again["code"], "conflict");
    let got = server.post("/api/v1/app?get_if_exists=true", body).await.expect(200);
    assert_eq!(got, created);
    let fresh = r#"{"name":"Two","uid":"two"}"#;
    server.post("/api/v1/app?get_if_exists=true", fresh).await.expect(201);

    let patched = r#"{"throttleRate":null,"uid":null,"metadata":null}"#;
    let path = format!("/api/v1/app/{}", id_of(&created));
    let patched = server.call(Method::PATCH, &path, patched).await.expect(200);
    assert_eq!((&patched["name"], &patched["uid"]), (&json!("One"), &Value::Null));
    assert_eq!((&patched["throttleRate"], &patched["metadata"]), (&Value::Null, &json!({})));
    server.call(Method::PATCH, &path, r#"{"name":null}"#).await.expect(422);

    server.call(Method::DELETE, &path, "").await.expect(204);
    server.get(&path).await.expect(404);
    server.call(Method::DELETE, &path, "").await.expect(404);
    // The name of what was deleted is free again.
    server.post("/api/v1/app", body).await.expect(201);
}

#[tokio::test]
async fn a_put_creates_under_the_paths_uid_and_finds_it_again() {
    let server = Server::start().await;
    let body = r#"{"name":"App"}"#;
    let created = server.call(Method::PUT, "/api/v1/app/customer-1", body).await.expect(201);
    assert_eq!(created["uid"], "customer-1");
    let again = server.call(Method::PUT, "/api/v1/app/customer-1", body).await.expect(200);
    assert_eq!((&again["id"], &again["uid"]), (&created["id"], &created["uid"]));
    // By id, what is not given is reset.
    let path = format!("/api/v1/app/{}", id_of(&created));
    let reset = server.call(Method::PUT, &path, body).await.expect(200);
    assert_eq!(reset["uid"], Value::Null);
    // An id that is not there is never taken for a name.
    let path = "/api/v1/app/app_0000000000000000000000";
    server.call(Method::PUT, path, body).await.expect(404);

    let endpoint = r#"{"url":"http://a.test/"}"#;
    let path = format!("/api/v1/app/{}/endpoint/main", id_of(&created));
    let created = server.call(Method::PUT, &path, endpoint).await.expect(201);
    assert_eq!(created["uid"], "main");
    let again = server.call(Method::PUT, &path, endpoint).await.expect(200);
    assert_eq!((&again["id"], &again["uid"]), (&created["id"], &created["uid"]));
}

#[tokio::test]
async fn endpoints() {
    let server = Server::start().await;
    let application = server.application("App").await;
    server.post("/api/v1/event-type", r#"{"name":"a.b","description":"x"}"#).await.expect(201);
    let path = format!("/api/v1/app/{application}/endpoint");
    let body = r#"{"url":"http://Bad.URL","description":"d","filterTypes":["a.b"],
        "channels":["c1"],"rateLimit":3,"version":2,"uid":"ep","headers":{"X-One":"1"},
        "policy":{"timeoutMs":3000,"retry":{"kind":"schedule","delaysMs":[1000],"jitter":0.1},
            "rateLimit":{"count":10,"periodMs":1000,"burst":2},"finalStatuses":[418]}}"#;
    let created = server.post(&path, body).await.expect(201);
    for (field, value) in [
        ("url", json!("http://bad.url/")),
        ("description", json!("d")),
        ("eventTypes", json!(["a.b"])),
        ("filterTypes", json!(["a.b"])),
        ("channels", json!(["c1"])),
        ("throttleRate", json!(3)),
        ("rateLimit", json!(3)),
        ("version", json!(2)),
        ("disabled", json!(false)),
        ("metadata", json!({})),
    ] {
        assert_eq!(created[field], value, "{field}");
    }
    assert_eq!(created["policy"]["timeoutMs"], 3000);
    assert_eq!(created["policy"]["finalStatuses"], json!([418]));
    let one = format!("{path}/ep");
    assert_eq!(server.get(&one).await.expect(200), created);
    let headers = server.get(&format!("{one}/headers")).await.expect(200);
    assert_eq!(headers, json!({"headers": {"X-One": "1"}, "sensitive": []}));

    let replaced = r#"{"url":"http://b.test/x","disabled":true}"#;
    let replaced = server.call(Method::PUT, &one, replaced).await.expect(200);
    assert_eq!(replaced["disabledReason"], "manual");
    assert_eq!((&replaced["eventTypes"], &replaced["channels"]), (&Value::Null, &Value::Null));
    assert_eq!(replaced["policy"], created["policy"], "a PUT without a policy keeps it");
    let headers = server.get(&format!("{one}/headers")).await.expect(200);
    assert_eq!(headers["headers"], json!({"X-One": "1"}));

    let patched = r#"{"disabled":false,"policy":null,"eventTypes":["a.b"]}"#;
    let patched = server.call(Method::PATCH, &one, patched).await.expect(200);
    assert_eq!((&patched["disabled"], &patched["policy"]), (&json!(false), &json!({})));
    for null in ["url", "description", "version", "disabled"] {
        let body = format!(r#"{{"{null}":null}}"#);
        server.call(Method::PATCH, &one, &body).await.expect(422);
    }
    server.call(Method::DELETE, &one, "").await.expect(204);
    server.get(&one).await.expect(404);
}

#[tokio::test]
async fn secrets() {
    let server = Server::start().await;
    let application = server.application("App").await;
    let endpoint = server.endpoint(&application).await;
    let path = format!("/api/v1/app/{application}/endpoint/{endpoint}/secret");
    let first = server.get(&path).await.expect(200);
    assert!(first["key"].as_str().unwrap().starts_with("whsec_"));
    let rotate = format!("{path}/rotate");
    let second = server.post(&rotate, "").await.expect(200);
    assert_ne!(first["key"], second["key"]);
    assert_eq!(server.get(&path).await.expect(200), second);
    let given = r#"{"key":"whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="}"#;
    let third = server.post(&rotate, given).await.expect(200);
    assert_eq!(third["key"], "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
    for seconds in [-1, 604_801] {
        let body = format!(r#"{{"gracePeriodSeconds":{seconds}}}"#);
        server.post(&rotate, &body).await.expect(422);
    }
    // Two old ones so far; ten may be valid at once.
    for _ in 0..8 {
        server.post(&rotate, "{}").await.expect(200);
    }
    let full = server.post(&rotate, "{}").await.expect(400);
    assert_eq!(full["code"], "limit_reached");
    assert!(full["detail"].as_str().unwrap().contains("2026-"), "{full}");
    server.post(&rotate, r#"{"gracePeriodSeconds":0}"#).await.expect(200);
}

#[tokio::test]
async fn an_asymmetric_secret_shows_its_public_half_only() {
    let ed25519 = |settings: &mut posthaste_server::ApiSettings| {
        settings.secret_kind = posthaste_server::SecretKind::Ed25519;
    };
    let server = Server::start_with(ed25519, posthaste_server::ServeLimits::default()).await;
    let application = server.application("App").await;
    let endpoint = server.endpoint(&application).await;
    let path = format!("/api/v1/app/{application}/endpoint/{endpoint}/secret");
    let key = server.get(&path).await.expect(200);
    assert!(key["key"].as_str().unwrap().starts_with("whpk_"));
}

#[tokio::test]
async fn f102_sensitive_headers_are_withheld_whatever_the_case() {
    let server = Server::start().await;
    let application = server.application("App").await;
    let endpoint = server.endpoint(&application).await;
    let path = format!("/api/v1/app/{application}/endpoint/{endpoint}/headers");
    let body = r#"{"headers":{"AUTHORIZATION":"s1","x-Api-Key":"s2","Cookie":"s3","X-A":"open"}}"#;
    server.call(Method::PUT, &path, body).await.expect(204);
    let shown = server.get(&path).await;
    assert!(!["s1", "s2", "s3"].iter().any(|secret| shown.text().contains(secret)));
    let shown = shown.expect(200);
    assert_eq!(shown["headers"], json!({"X-A": "open"}));
    assert_eq!(shown["sensitive"], json!(["AUTHORIZATION", "x-Api-Key", "Cookie"]));
    let patch = r#"{"headers":{"x-a":null,"X-B":"2"},"deleteHeaders":["cookie"]}"#;
    server.call(Method::PATCH, &path, patch).await.expect(204);
    let shown = server.get(&path).await.expect(200);
    assert_eq!(shown["headers"], json!({"X-B": "2"}));
    assert_eq!(shown["sensitive"], json!(["AUTHORIZATION", "x-Api-Key"]));
    for name in ["Host", "content-length", "Webhook-Id", "svix-x", "bad name", ""] {
        let body = format!(r#"{{"headers":{{"{name}":"x"}}}}"#);
        server.call(Method::PUT, &path, &body).await.expect(422);
        server.call(Method::PATCH, &path, &body).await.expect(422);
    }
}

#[tokio::test]
async fn event_types() {
    let server = Server::start().await;
    let path = "/api/v1/event-type";
    let body = r#"{"name":"a.b","description":"d","schemas":{"1":{"type":"object","z":1,"a":2}}}"#;
    let created = server.post(path, body).await;
    assert!(created.text().contains(r#"{"1":{"type":"object","z":1,"a":2}}"#));
    let created = created.expect(201);
    assert_eq!(server.get("/api/v1/event-type/a.b").await.expect(200), created);
    assert_eq!(server.post(path, body).await.expect(409)["code"], "event_type_exists");
    let one = "/api/v1/event-type/a.b";
    let patched = r#"{"deprecated":true,"schemas":null,"featureFlag":"beta"}"#;
    let patched = server.call(Method::PATCH, one, patched).await.expect(200);
    assert_eq!((&patched["deprecated"], &patched["schemas"]), (&json!(true), &Value::Null));
    let replaced = server.call(Method::PUT, one, r#"{"description":"new"}"#).await.expect(200);
    assert_eq!((&replaced["deprecated"], &replaced["featureFlag"]), (&json!(false), &Value::Null));
    server.call(Method::PUT, "/api/v1/event-type/b", r#"{"description":""}"#).await.expect(201);
    server.call(Method::PUT, "/api/v1/event-type/a%20b", r#"{"description":""}"#).await.expect(422);

    server.call(Method::DELETE, one, "").await.expect(204);
    assert_eq!(server.get(one).await.expect(200)["archived"], true);
    let names = |page: Value| -> Vec<String> {
        let data = page["data"].as_array().unwrap().clone();
        data.iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(server.get(path).await.expect(200)), ["b"]);
    let all = format!("{path}?include_archived=true&order=descending&with_content=false");
    assert_eq!(names(server.get(&all).await.expect(200)), ["b", "a.b"]);
    // An endpoint may not ask for what is archived or unknown; a message may be of any type.
    let application = server.application("App").await;
    for name in ["a.b", "unknown"] {
        let body = format!(r#"{{"url":"http://a.test","eventTypes":["{name}"]}}"#);
        let path = format!("/api/v1/app/{application}/endpoint");
        let refused = server.post(&path, &body).await.expect(422);
        assert_eq!(refused["detail"][0]["loc"], json!(["body", "eventTypes"]));
    }
    server.post(path, body).await.expect(201);
    assert_eq!(server.get(one).await.expect(200)["archived"], false);
    server.call(Method::DELETE, "/api/v1/event-type/a.b?expunge=true", "").await.expect(204);
    server.get(one).await.expect(404);
}

#[tokio::test]
async fn attempts_and_how_deliveries_stand() {
    let server = Server::start().await;
    let application = server.application("App").await;
    let endpoint = server.endpoint(&application).await;
    let message = server.message(&application).await;
    let base = format!("/api/v1/app/{application}");
    let standing = format!("{base}/msg/{message}/endpoint");
    let waiting = server.get(&standing).await.expect(200);
    assert_eq!(waiting["data"][0]["status"], 1);

    assert_eq!(server.work(503, b"caf\xC3\xA9\0").await, 1);
    let of_message = format!("{base}/attempt/msg/{message}");
    let attempts = server.get(&of_message).await.expect(200);
    let attempt = &attempts["data"][0];
    assert_eq!(attempt["response"], "café\0");
    assert_eq!((&attempt["status"], &attempt["statusText"]), (&json!(2), &json!("fail")));
    assert_eq!(attempt["responseStatusCode"], 503);
    assert_eq!(attempt["responseDurationMs"], 12);
    assert_eq!((&attempt["triggerType"], &attempt["attemptNumber"]), (&json!(0), &json!(1)));
    assert_eq!(attempt["url"], "http://127.0.0.1:9/hook?key=***");
    let one = format!("{base}/msg/{message}/attempt/{}", id_of(attempt));
    assert_eq!(&server.get(&one).await.expect(200), attempt);
    let of_endpoint = format!("{base}/attempt/endpoint/{endpoint}");
    assert_eq!(server.get(&of_endpoint).await.expect(200), attempts);
    let standing_now = server.get(&standing).await.expect(200);
    assert_eq!(standing_now["data"][0]["status"], 3);
    assert!(standing_now["data"][0]["nextAttempt"].is_string());
    assert_eq!(standing_now["done"], true);

    let resend = format!("{standing}/{endpoint}/resend");
    assert_eq!(server.post(&resend, "").await.expect(202), json!({}));
    assert_eq!(server.work(200, b"ok").await, 1);
    let attempts = server.get(&format!("{of_message}?status=0")).await.expect(200);
    assert_eq!(attempts["data"][0]["triggerType"], 1);
    assert_eq!(attempts["data"].as_array().unwrap().len(), 1);
    let none = server.get(&format!("{of_message}?status=3")).await.expect(200);
    assert_eq!((&none["data"], &none["done"]), (&json!([]), &json!(true)));
    let delivered = server.get(&format!("{base}/endpoint/{endpoint}/msg?status=0")).await;
    assert_eq!(delivered.expect(200)["data"][0]["id"], message.as_str());
    let failed = server.get(&format!("{base}/endpoint/{endpoint}/msg?status=2")).await;
    assert_eq!(failed.expect(200)["data"], json!([]));
    for query in ["status=4", "status=x", "status_code_class=250", "limit=-1", "order=up"] {
        let reply = server.get(&format!("{of_message}?{query}")).await;
        // Attempts have no order to choose.
        assert_eq!(reply.status, if query == "order=up" { 200 } else { 400 }, "{query}");
    }
    server.get(&format!("{of_message}?endpoint_id=nobody")).await.expect(404);
    server.get(&format!("{base}/msg/{message}/attempt/atmpt_x")).await.expect(404);

    // A deleted endpoint is still told of.
    server.call(Method::DELETE, &format!("{base}/endpoint/{endpoint}"), "").await.expect(204);
    let standing = server.get(&standing).await.expect(200);
    assert_eq!(standing["data"][0]["url"], "http://127.0.0.1:9/hook?key=***");
    assert_eq!(standing["data"][0]["status"], 0);
}

#[tokio::test]
async fn what_was_given_up_is_listed_and_recovered() {
    let server = Server::start().await;
    let application = server.application("App").await;
    let endpoint = server.endpoint(&application).await;
    let before = posthaste_core::time::Clock::now(&*server.clock);
    let message = server.message(&application).await;
    server.work(404, b"").await;
    let letters = format!("/api/v1/dead-letter?app={application}&endpoint={endpoint}");
    let letters = server.get(&letters).await.expect(200);
    assert_eq!(letters["data"][0]["msgId"], message.as_str());
    assert_eq!(letters["data"][0]["cause"], "final: status_404");
    assert_eq!(server.get("/api/v1/dead-letter").await.expect(200), letters);
    let foreign = token_of("org_other");
    let none = server.call_as(&foreign, Method::GET, "/api/v1/dead-letter", &[], "").await;
    assert_eq!(none.expect(200)["data"], json!([]));

    let path = format!("/api/v1/app/{application}/endpoint/{endpoint}");
    let since = "2026-05-28T00:00:00Z";
    assert!(before.as_secs() > 1_779_926_400, "the clock is later than `since`");
    let task = server.post(&format!("{path}/recover"), &format!(r#"{{"since":"{since}"}}"#)).await;
    let task = task.expect(202);
    assert_eq!((&task["status"], &task["task"]), (&json!("running"), &json!("endpoint.recover")));
    while server.store.step(posthaste_core::time::Clock::now(&*server.clock)).await.unwrap()
        != posthaste_store::upkeep::Step::Idle
    {}
    let found = server.get(&format!("/api/v1/background-task/{}", id_of(&task))).await.expect(200);
    assert_eq!((&found["status"], &found["data"]["replayed"]), (&json!("finished"), &json!(1)));
    assert_eq!(found["data"]["messagesSent"], 1);
    assert_eq!(server.work(200, b"").await, 1);

    for (body, field) in [
        ("{}", "since"),
        (r#"{"since":"yesterday"}"#, "since"),
        (r#"{"since":"2026-01-02T00:00:00Z","until":"2026-01-01T00:00:00Z"}"#, "since"),
        (r#"{"since":"2026-01-01T00:00:00Z"}"#, "since"),
    ] {
        let refused = server.post(&format!("{path}/recover"), body).await.expect(422);
        assert_eq!(refused["detail"][0]["loc"][1], field, "{body}");
    }
    let replay = r#"{"since":"2026-01-01T00:00:00Z","states":["held"],"ratePerSecond":10}"#;
    server.post(&format!("{path}/replay"), replay).await.expect(202);
    let wrong = r#"{"since":"2026-01-01T00:00:00Z","states":["delivered"]}"#;
    server.post(&format!("{path}/replay"), wrong).await.expect(422);
}

#[tokio::test]
async fn status_health_and_metrics() {
    let server = Server::start().await;
    let application = server.application("App").await;
    let endpoint = server.endpoint(&application).await;
    let message = server.message(&application).await;
    let status = server.get("/api/v1/status").await.expect(200);
    assert_eq!((&status["pending"], &status["awaiting_retry"]), (&json!(1), &json!(0)));
    assert_eq!(status["oldest_undelivered"]["message_id"], message.as_str());
    let path = format!("/api/v1/app/{application}/endpoint/{endpoint}/health");
    let health = server.get(&path).await.expect(200);
    assert_eq!((&health["breaker"], &health["consecutiveFailures"]), (&json!("closed"), &json!(0)));
    assert_eq!((&health["samples"], &health["p95Ms"]), (&json!(0), &Value::Null));

    let whole = server.call_as("", Method::GET, "/api/v1/health", &[], "").await.expect(200);
    assert_eq!(whole["database"]["status"], "ok");
    let head = server.call_as("", Method::HEAD, "/api/v1/health", &[], "").await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    for method in [Method::GET, Method::HEAD] {
        server.call_as("", method, "/api/v1/health/ping", &[], "").await.expect(204);
    }
    server.clock.advance(std::time::Duration::from_secs(60));
    let metrics = server.call_as("", Method::GET, "/metrics", &[], "").await;
    assert!(metrics.text().starts_with("posthaste_of_the_process 1\n"));
    assert!(metrics.text().contains("posthaste_messages_accepted_total 1\n"));
    assert!(!metrics.text().contains(&application));
    let gauge = |name: &str| {
        let line = metrics.text().lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name}")).trim().parse::<f64>().unwrap()
    };
    assert_eq!(gauge(r#"posthaste_deliveries{state="pending"}"#), 1.0);
    assert_eq!(gauge(r#"posthaste_deliveries{state="dead_letter"}"#), 0.0);
    for name in ["posthaste_oldest_undelivered_seconds", "posthaste_oldest_due_seconds"] {
        assert!((60.0..61.0).contains(&gauge(name)), "{name} is {}", gauge(name));
    }
    // A reading holds for some seconds, however often it is asked for.
    server.message(&application).await;
    let pending = async || {
        let again = server.call_as("", Method::GET, "/metrics", &[], "").await;
        again.text().lines().find(|line| line.contains("\"pending\"")).unwrap().to_owned()
    };
    assert!(pending().await.ends_with(" 1"));
    server.clock.advance(std::time::Duration::from_secs(5));
    assert!(pending().await.ends_with(" 2"));
}

#[tokio::test]
async fn portal_tokens() {
    let server = Server::start().await;
    let path = "/api/v1/auth/app-portal-access/new-one";
    server.post(path, "{}").await.expect(404);
    let body = r#"{"application":{"name":"N","uid":"new-one"},"featureFlags":["beta"]}"#;
    let access = server.post(path, body).await.expect(200);
    let token = access["token"].as_str().unwrap();
    assert!(access["url"].as_str().unwrap().starts_with("http://hooks.test/portal/app_"));
    let get = server.call_as(token, Method::GET, "/api/v1/app/new-one", &[], "").await;
    get.expect(200);
    server.post("/api/v1/auth/dashboard-access/new-one", "").await.expect(200);
    for (body, field) in [
        (r#"{"expiry":0}"#, "expiry"),
        (r#"{"featureFlags":["a b"]}"#, "featureFlags"),
        (r#"{"application":{"name":"N","uid":"other"}}"#, ""),
    ] {
        let reply = server.post(path, body).await;
        let expected = if field.is_empty() { 200 } else { 422 };
        assert_eq!(reply.status, expected, "{body}: {}", reply.text());
    }
    let other = "/api/v1/auth/app-portal-access/not-there";
    let mismatch =
        server.post(other, r#"{"application":{"name":"N","uid":"x"}}"#).await.expect(422);
    assert_eq!(mismatch["detail"][0]["type"], "application_uid_mismatch");
}

#[tokio::test]
async fn the_document_has_every_operation() {
    let server = Server::start().await;
    let document =
        server.call_as("", Method::GET, "/api/v1/openapi.json", &[], "").await.expect(200);
    assert_eq!(document["openapi"], "3.1.0");
    let mut described = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            described += 1;
            let names = path.replace(['{', '}'], "");
            let method: Method = method.to_ascii_uppercase().parse().unwrap();
            // Without a token and with names that are not there: routed, if it is not
            // `not_implemented` or 405.
            let reply = server.call_as("", method.clone(), &names, &[], "").await;
            let open = operation.get("security").is_none();
            assert_eq!(reply.status == 401, !open, "{method} {path} gave {}", reply.status);
            for reference in references(operation) {
                let name = reference.strip_prefix("#/components/schemas/").unwrap();
                assert!(document["components"]["schemas"].get(name).is_some(), "{reference}");
            }
        }
    }
    for (path, methods) in TIER_1 {
        for method in *methods {
            let path = format!("/api/v1{path}");
            assert!(document["paths"][&path].get(method).is_some(), "{method} {path}");
        }
    }
    let tier_1 = TIER_1.iter().map(|(_, methods)| methods.len()).sum::<usize>();
    assert_eq!(tier_1, 36);
    // The rest is ours and what old clients ask for.
    assert_eq!(described, tier_1 + 10);
}

/// What client libraries need to send, deliver, inspect and replay.
const TIER_1: &[(&str, &[&str])] = &[
    ("/app", &["get", "post"]),
    ("/app/{app_id}", &["get", "put", "patch", "delete"]),
    ("/app/{app_id}/endpoint", &["get", "post"]),
    ("/app/{app_id}/endpoint/{endpoint_id}", &["get", "put", "patch", "delete"]),
    ("/app/{app_id}/endpoint/{endpoint_id}/secret", &["get"]),
    ("/app/{app_id}/endpoint/{endpoint_id}/secret/rotate", &["post"]),
    ("/app/{app_id}/endpoint/{endpoint_id}/headers", &["get", "put", "patch"]),
    ("/app/{app_id}/endpoint/{endpoint_id}/recover", &["post"]),
    ("/event-type", &["get", "post"]),
    ("/event-type/{event_type_name}", &["get", "put", "patch", "delete"]),
    ("/app/{app_id}/msg", &["get", "post"]),
    ("/app/{app_id}/msg/{msg_id}", &["get"]),
    ("/app/{app_id}/attempt/endpoint/{endpoint_id}", &["get"]),
    ("/app/{app_id}/attempt/msg/{msg_id}", &["get"]),
    ("/app/{app_id}/msg/{msg_id}/attempt/{attempt_id}", &["get"]),
    ("/app/{app_id}/endpoint/{endpoint_id}/msg", &["get"]),
    ("/app/{app_id}/msg/{msg_id}/endpoint", &["get"]),
    ("/app/{app_id}/msg/{msg_id}/endpoint/{endpoint_id}/resend", &["post"]),
    ("/auth/app-portal-access/{app_id}", &["post"]),
    ("/health", &["get", "head"]),
];

/// Every `$ref` in a value.
fn references(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) => {
            let own = fields.get("$ref").and_then(Value::as_str).map(str::to_owned);
            own.into_iter().chain(fields.values().flat_map(references)).collect()
        }
        Value::Array(items) => items.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn an_endpoint_list_is_newest_first_and_an_application_list_oldest_first() {
    let server = Server::start().await;
    let first = server.application("1").await;
    let second = server.application("2").await;
    let page = server.get("/api/v1/app").await.expect(200);
    assert_eq!(ids_of(&page), [first.as_str(), second.as_str()]);
    let page = server.get("/api/v1/app?order=descending").await.expect(200);
    assert_eq!(ids_of(&page), [second.as_str(), first.as_str()]);
    let (older, newer) = (server.endpoint(&first).await, server.endpoint(&first).await);
    let page = server.get(&format!("/api/v1/app/{first}/endpoint")).await.expect(200);
    assert_eq!(ids_of(&page), [newer, older]);
}
