//! Who may do what.

use crate::common::{Server, id_of, keys, token_of};
use http::Method;
use posthaste_core::event::OrganisationId;
use posthaste_core::time::Clock as _;
use posthaste_server::auth::{self, ApplicationGrant};
use std::time::Duration;

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

#[tokio::test]
async fn a_background_task_is_its_own_applications() {
    let server = Server::start().await;
    let (own, other) = (server.application("Own").await, server.application("Other").await);
    let endpoint = server.endpoint(&own).await;
    let path = format!("/api/v1/app/{own}/endpoint/{endpoint}/recover");
    let task = server.post(&path, r#"{"since":"2026-05-28T00:00:00Z"}"#).await.expect(202);
    let path = format!("/api/v1/background-task/{}", id_of(&task));
    let of_application = |name: &str| application_token(&server, name);
    for (token, status) in [
        (server.token.clone(), 200),
        (of_application(&own), 200),
        (of_application(&other), 404),
        (token_of("org_stranger"), 404),
    ] {
        let reply = server.call_as(&token, Method::GET, &path, &[], "").await;
        assert_eq!(reply.status, status, "{}", reply.text());
    }
}

fn application_token(server: &Server, application: &str) -> String {
    let organisation = OrganisationId::new("org_tests").unwrap();
    let grant = ApplicationGrant {
        organisation: &organisation,
        application: application.parse().unwrap(),
        feature_flags: &[],
        read_only: false,
    };
    auth::mint_application(&keys(), &grant, server.clock.now(), Duration::from_secs(3_600))
}

#[tokio::test]
async fn a_kept_answer_is_not_given_to_another_application() {
    let server = Server::start().await;
    let (own, other) = (server.application("Own").await, server.application("Other").await);
    let mint = |application: &str| application_token(&server, application);
    let path = format!("/api/v1/app/{own}/endpoint");
    let post = async |token: &str, body: &str| {
        let headers = [("idempotency-key", "once")];
        server.call_as(token, Method::POST, &path, &headers, body).await
    };
    let body = r#"{"url":"http://a.test/?token=secret"}"#;
    let made = post(&mint(&own), body).await.expect(201);
    assert_eq!(post(&mint(&own), body).await.expect(201)["id"], made["id"]);
    // With the right body, and with another one, which must not tell that the key is known.
    post(&mint(&other), body).await.expect(404);
    post(&mint(&other), r#"{"url":"http://b.test"}"#).await.expect(404);
}
