//! What a server says about deliveries, and whether a request is what it should be.

use super::{Posthaste, Setup};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use posthaste_testkit::ReceivedRequest;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

/// A secret whose key is the bytes 0 to 31.
pub const SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// Another, of the bytes 32 to 63.
pub const OTHER_SECRET: &str = "whsec_ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=";

impl Setup {
    /// A worker on the same folder with the same settings.
    pub fn worker(&self) -> Self {
        Self {
            database: self.database.clone(),
            command: ["worker", "--dev"].map(str::to_owned).into(),
            variables: self.variables.clone(),
        }
    }

    /// Leaves a variable unset that `new` sets.
    pub fn without(mut self, name: &str) -> Self {
        self.variables.retain(|(other, _)| other != name);
        self
    }
}

impl Posthaste {
    /// The attempts of a message, oldest first.
    pub async fn attempts(&self, application: &str, message: &str) -> Vec<Value> {
        let path = format!("/api/v1/app/{application}/attempt/msg/{message}?limit=250");
        let (status, answer) = self.api("GET", &path, Value::Null).await;
        assert_eq!(status, 200, "{answer}");
        let mut attempts = answer["data"].as_array().unwrap().clone();
        attempts.reverse();
        attempts
    }

    /// How a message stands with one endpoint.
    pub async fn standing(&self, application: &str, message: &str, endpoint: &str) -> Value {
        self.standing_until(application, message, endpoint, |_| true).await
    }

    /// Asks until the delivery is in `state`, and says how it stands.
    pub async fn until_state(
        &self,
        (application, message, endpoint): (&str, &str, &str),
        state: &str,
    ) -> Value {
        let done = |standing: &Value| standing["state"] == state;
        self.standing_until(application, message, endpoint, done).await
    }

    /// Asks until `done` likes how a message stands with one endpoint.
    pub async fn standing_until(
        &self,
        application: &str,
        message: &str,
        endpoint: &str,
        done: impl Fn(&Value) -> bool,
    ) -> Value {
        let path = format!("/api/v1/app/{application}/msg/{message}/endpoint?limit=250");
        let find = |answer: &Value| {
            let all = answer["data"].as_array().cloned().unwrap_or_default();
            all.into_iter().find(|standing| standing["id"] == endpoint)
        };
        let answer = self.get_until(&path, |answer| find(answer).is_some_and(|it| done(&it))).await;
        find(&answer).unwrap()
    }

    /// What `GET .../endpoint/{endpoint}` says.
    pub async fn endpoint_now(&self, application: &str, endpoint: &str) -> Value {
        let path = format!("/api/v1/app/{application}/endpoint/{endpoint}");
        let (status, answer) = self.api("GET", &path, Value::Null).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    pub async fn patch_endpoint(&self, application: &str, endpoint: &str, patch: Value) {
        let path = format!("/api/v1/app/{application}/endpoint/{endpoint}");
        let (status, answer) = self.api("PATCH", &path, patch).await;
        assert_eq!(status, 200, "{answer}");
    }

    pub async fn health_until(
        &self,
        application: &str,
        endpoint: &str,
        done: impl Fn(&Value) -> bool,
    ) -> Value {
        let path = format!("/api/v1/app/{application}/endpoint/{endpoint}/health");
        self.get_until(&path, done).await
    }

    pub async fn resend(&self, application: &str, message: &str, endpoint: &str) {
        let path = format!("/api/v1/app/{application}/msg/{message}/endpoint/{endpoint}/resend");
        let (status, answer) = self.api("POST", &path, json!({})).await;
        assert_eq!(status, 202, "{answer}");
    }

    /// The logged events of this very name.
    pub fn logged(&self, name: &str) -> Vec<Value> {
        self.events(name).into_iter().filter(|event| event["message"] == name).collect()
    }

    /// Waits until an event of this name is logged, and returns all of them.
    pub async fn logged_until(&self, name: &str) -> Vec<Value> {
        let waiting = async {
            while self.logged(name).is_empty() {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(super::PATIENCE, waiting).await;
        assert!(waited.is_ok(), "no {name} in {:#?}", self.log());
        self.logged(name)
    }
}

/// Where a server listens that says something else than TLS to whoever comes.
pub async fn speaks_no_tls() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"220 mail.test ESMTP\r\n").await;
        }
    });
    address
}

/// Whether exactly one signature is there, and it is the secret's over id, timestamp and the very
/// bytes of the body.
pub fn is_signed(request: &ReceivedRequest, secret: &str) -> bool {
    let header = |name| request.header(name).unwrap();
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &key);
    let mut content =
        format!("{}.{}.", header("webhook-id"), header("webhook-timestamp")).into_bytes();
    content.extend_from_slice(&request.body);
    let wanted = STANDARD.encode(ring::hmac::sign(&key, &content));
    header("webhook-signature") == format!("v1,{wanted}")
}

/// How many requests there were for each message.
pub fn by_message(requests: &[ReceivedRequest]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for request in requests {
        *counts.entry(request.header("webhook-id").unwrap()).or_default() += 1;
    }
    counts
}

/// The numbers of attempts, as they stand in a list of them.
pub fn numbers(attempts: &[Value]) -> Vec<u64> {
    attempts.iter().map(|attempt| attempt["attemptNumber"].as_u64().unwrap()).collect()
}
