//! Speaks to a running server for the client commands.

use crate::failure::{self, Failure};
use serde_json::Value;
use std::time::Duration;
use ureq::Agent;
use ureq::http::{Method, Request};
use url::Url;

/// Longer than the server takes for anything.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// A server and the right to speak to it. `Clone` shares its connections.
#[derive(Clone)]
pub struct Client {
    agent: Agent,
    base: Url,
    token: String,
}

impl Client {
    /// # Errors
    /// `base` is not an http or https address, or the token cannot be in a header.
    pub fn new(base: &str, token: &str) -> Result<Self, Failure> {
        let mut base = Url::parse(base)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
            .ok_or_else(|| {
                Failure::usage("the server's address must look like http://127.0.0.1:8071")
            })?;
        // A login in the address serves nothing, because the token is what is sent; so it need not
        // be kept, and cannot be shown. A URL with a host takes both changes.
        let _ = base.set_username("").and_then(|()| base.set_password(None));
        let token = token.trim();
        if token.is_empty() || !token.bytes().all(|byte| (0x21..0x7F).contains(&byte)) {
            return Err(Failure::usage(
                "the token is empty or holds characters no token has (--token, POSTHASTE_TOKEN)",
            ));
        }
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(TIMEOUT))
            .timeout_connect(Some(Duration::from_secs(5)))
            .user_agent(concat!("posthaste-cli/", env!("CARGO_PKG_VERSION")));
        if is_loopback(&base) {
            // A proxy that the environment names cannot reach this machine's own addresses.
            config = config.proxy(None);
        }
        Ok(Self { agent: config.build().into(), base, token: token.to_owned() })
    }

    /// # Errors
    /// The server is unreachable, or refuses.
    pub fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, Failure> {
        let mut url = self.url(path)?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        self.exchange(&Method::GET, &url, Vec::new(), None).and_then(|text| json(&text))
    }

    /// As `get`, for an answer that is text.
    ///
    /// # Errors
    /// The server is unreachable, or refuses.
    pub fn get_text(&self, path: &str) -> Result<String, Failure> {
        let text = self.exchange(&Method::GET, &self.url(path)?, Vec::new(), None)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// # Errors
    /// The server is unreachable, or refuses.
    pub fn post(&self, path: &str, body: Vec<u8>) -> Result<Value, Failure> {
        self.post_once(path, body, None)
    }

    /// As `post`; with a key, doing it again does nothing twice.
    ///
    /// # Errors
    /// The server is unreachable, or refuses.
    pub fn post_once(
        &self,
        path: &str,
        body: Vec<u8>,
        idempotency_key: Option<&str>,
    ) -> Result<Value, Failure> {
        let answer = self.exchange(&Method::POST, &self.url(path)?, body, idempotency_key)?;
        json(&answer)
    }

    fn url(&self, path: &str) -> Result<Url, Failure> {
        let base = self.base.as_str().trim_end_matches('/');
        Url::parse(&format!("{base}{path}")).map_err(|error| Failure::usage(error.to_string()))
    }

    fn exchange(
        &self,
        method: &Method,
        url: &Url,
        body: Vec<u8>,
        idempotency_key: Option<&str>,
    ) -> Result<Vec<u8>, Failure> {
        let mut request = Request::builder()
            .method(method)
            .uri(url.as_str())
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", "application/json");
        if let Some(key) = idempotency_key {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(body).map_err(|error| Failure::usage(error.to_string()))?;
        let mut answer = self.agent.run(request).map_err(|error| self.unreachable(&error))?;
        let status = answer.status().as_u16();
        let reader = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let text = reader.read_to_vec().map_err(|error| self.unreachable(&error))?;
        if (200..300).contains(&status) {
            return Ok(text);
        }
        let refusal = refusal(status, &serde_json::from_slice(&text).unwrap_or_default());
        Err(match status {
            400..500 => Failure::with(failure::REFUSED, refusal),
            _ => Failure::new(format!("the server is in trouble: {refusal}")),
        })
    }

    fn unreachable(&self, error: &ureq::Error) -> Failure {
        Failure::with(
            failure::UNREACHABLE,
            format!(
                "cannot reach {}: {error}; is the server running (`posthaste serve`), and is this \
                 its address (--url)?",
                // Not what follows: it is for the server alone.
                self.base.origin().ascii_serialization()
            ),
        )
    }
}

/// An empty answer is as good as `null`.
fn json(text: &[u8]) -> Result<Value, Failure> {
    match text.is_empty() {
        true => Ok(Value::Null),
        false => serde_json::from_slice(text)
            .map_err(|error| Failure::new(format!("the server's answer is not JSON: {error}"))),
    }
}

/// The code that the server gave and its reason, whichever of its error forms it used.
fn refusal(status: u16, answer: &Value) -> String {
    let reason = match &answer["detail"] {
        Value::String(detail) => detail.clone(),
        Value::Array(faults) => faults.iter().map(fault).collect::<Vec<_>>().join("; "),
        _ => "no reason given".to_owned(),
    };
    match (status, answer["code"].as_str()) {
        (401, _) => format!("{reason} (401): the token is not one of this server's (--token)"),
        (_, Some(code)) => format!("{reason} ({status} {code})"),
        (_, None) => format!("{reason} ({status})"),
    }
}

fn fault(fault: &Value) -> String {
    let parts = fault["loc"].as_array().map(Vec::as_slice).unwrap_or_default();
    let path: Vec<_> = parts.iter().filter_map(Value::as_str).collect();
    format!("{}: {}", path.join("."), fault["msg"].as_str().unwrap_or("is wrong"))
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => false,
    }
}
