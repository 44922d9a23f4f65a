//! Nothing secret or personal is in what a server prints, whatever happens and whatever the level.

mod common;

use common::{Setup, token};
use posthaste_testkit::{Receiver, Reply};
use serde_json::json;

/// What no log may hold; each stands in one place only.
const HIDDEN: [&str; 8] = [
    "payload-marker",
    "path-marker",
    "query-marker",
    "user-marker",
    "password-marker",
    "header-marker",
    "answer-marker",
    "idempotency-marker",
];
const SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

#[tokio::test(flavor = "multi_thread")]
async fn f055_no_log_line_or_metric_holds_what_is_secret_or_personal() {
    let server = Setup::new().with("POSTHASTE_LOG__LEVEL", "trace").start();
    let application = server.application().await;
    let answers = Receiver::always(Reply::with_body(500, "answer-marker")).await;
    let breaks = Receiver::always(Reply::garbage()).await;
    let refuses = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let addresses = [answers.address(), breaks.address(), refuses];
    for address in addresses {
        let url =
            format!("http://user-marker:password-marker@{address}/path-marker?token=query-marker");
        let more = json!({ "secret": SECRET, "headers": { "x-api-key": "header-marker" } });
        server.endpoint(&application, &url, more).await;
    }
    server.message(&application, r#"{"text":"payload-marker"}"#).await;
    let path = format!("/api/v1/app/{application}/msg");
    let body = json!({ "eventType": "not valid!", "payload": { "text": "payload-marker" } });
    let (status, _) = server.api("POST", &path, body).await;
    assert_eq!(status, 422);
    // Every delivery runs through all its attempts, to the dead letter.
    server.status_until(|status| status["dead_letter"] == 3).await;
    let (_, metrics) = server.api("GET", "/metrics", serde_json::Value::Null).await;
    server.signal("TERM");
    let log = {
        let events = server.events("delivery.attempted");
        assert!(events.len() >= 12, "{} attempts were logged", events.len());
        server.log().join("\n")
    };
    let own = token();
    let signature = own.rsplit('.').next().unwrap();
    let hidden = HIDDEN.into_iter().chain([SECRET, &SECRET[6..20], "long enough", signature]);
    for text in hidden {
        assert!(!log.contains(text), "`{text}` is in the log");
        assert!(!metrics.to_string().contains(text), "`{text}` is in the metrics");
    }
}
