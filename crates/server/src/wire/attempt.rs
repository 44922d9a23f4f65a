//! Attempts and deliveries on the wire.
//!
//! Svix knows four statuses; a delivery has seven states. Ours map like this: `delivered` is
//! Success; `pending` and `held` are Pending, as nothing is under way; `in_flight` and
//! `awaiting_retry` are Sending, as more will be tried; `dead_letter` and `cancelled` are Fail.
//! An attempt is Success or Fail: it is written when it is over.

use crate::error::{Refusal, Result};
use crate::query::Query;
use crate::wire::message::MessageOut;
use crate::wire::time::Time;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use posthaste_core::delivery::{DeliveryState, Trigger};
use posthaste_core::endpoint::{Endpoint, Metadata};
use posthaste_core::message::Message;
use posthaste_core::outcome::{Answer, Failure, FailureKind, OutcomeClass};
use posthaste_core::redact;
use posthaste_store::history::{Delivery, StoredAttempt};
use schemars::JsonSchema;
use serde::Serialize;
use url::Url;

/// 0 Success, 1 Pending, 2 Fail, 3 Sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Success,
    Pending,
    Fail,
    Sending,
}

impl Status {
    pub fn of(state: DeliveryState) -> Self {
        match state {
            DeliveryState::Delivered => Self::Success,
            DeliveryState::Pending | DeliveryState::Held => Self::Pending,
            DeliveryState::DeadLetter | DeliveryState::Cancelled => Self::Fail,
            DeliveryState::InFlight | DeliveryState::AwaitingRetry => Self::Sending,
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Pending => 1,
            Self::Fail => 2,
            Self::Sending => 3,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Pending => "pending",
            Self::Fail => "fail",
            Self::Sending => "sending",
        }
    }

    /// The states that show as this status.
    pub fn states(self) -> Vec<DeliveryState> {
        DeliveryState::ALL.into_iter().filter(|state| Self::of(*state) == self).collect()
    }

    /// The `status` of a query.
    pub fn wanted(query: &Query) -> Result<Option<Self>> {
        let Some(number) = query.number("status")? else { return Ok(None) };
        let all = [Self::Success, Self::Pending, Self::Fail, Self::Sending];
        match all.into_iter().find(|status| u32::from(status.number()) == number) {
            Some(status) => Ok(Some(status)),
            None => Err(Refusal::bad_query("status", "0, 1, 2 or 3")),
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MessageAttemptOut {
    pub id: String,
    pub msg_id: String,
    pub endpoint_id: String,
    /// User info and the values of the query are masked.
    pub url: String,
    /// The body of the answer; base64 where it is not UTF-8. Without an answer, what went wrong.
    pub response: String,
    /// The answer was longer than what is kept of it.
    pub response_truncated: bool,
    /// 0 without an answer.
    pub response_status_code: u16,
    pub response_duration_ms: u64,
    pub status: u8,
    pub status_text: &'static str,
    /// 0 scheduled, 1 manual.
    pub trigger_type: u8,
    /// Counted from 1 within the delivery.
    pub attempt_number: u32,
    /// What the attempt showed: `success`, `status_503`, `timeout`, `connect`, ...
    pub outcome: String,
    /// What became of it: `delivered`, `retry`, `dead_letter`, or `stale` when another worker had
    /// taken over.
    pub verdict: String,
    pub next_attempt: Option<Time>,
    pub timestamp: Time,
}

/// A message as it stands with one endpoint.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "EndpointMessageOut")]
pub(crate) struct EndpointMessageOut<'a> {
    #[serde(flatten)]
    pub message: MessageOut<'a>,
    #[serde(flatten)]
    pub standing: Standing,
}

/// An endpoint as it stands with one message. Of one that was deleted, only what is still known.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MessageEndpointOut {
    pub id: String,
    pub uid: Option<String>,
    pub url: String,
    pub description: String,
    pub disabled: bool,
    pub event_types: Option<Vec<String>>,
    pub filter_types: Option<Vec<String>>,
    pub channels: Option<Vec<String>>,
    pub throttle_rate: Option<u16>,
    pub rate_limit: Option<u16>,
    pub version: u16,
    pub metadata: Metadata,
    pub created_at: Time,
    pub updated_at: Time,
    #[serde(flatten)]
    pub standing: Standing,
}

/// How one delivery stands.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Standing {
    pub status: u8,
    pub status_text: &'static str,
    pub next_attempt: Option<Time>,
    /// Our own, finer word for it.
    pub state: &'static str,
    pub attempts: u32,
    /// Why it was given up or cancelled.
    pub cause: Option<String>,
}

impl MessageAttemptOut {
    pub fn new(attempt: StoredAttempt, with_content: bool) -> Self {
        let outcome = &attempt.outcome;
        let class = outcome.class();
        let status = if class == OutcomeClass::Success { Status::Success } else { Status::Fail };
        let (code, truncated) = match &outcome.answer {
            Answer::Response(response) => (response.status, response.body_cut),
            Answer::Failure(_) => (0, false),
        };
        Self {
            id: attempt.id.to_string(),
            msg_id: attempt.key.message_id.to_string(),
            endpoint_id: attempt.key.endpoint_id.to_string(),
            url: masked(&attempt.url),
            response: if with_content { response_text(&outcome.answer) } else { "{}".to_owned() },
            response_truncated: truncated,
            response_status_code: code,
            response_duration_ms: u64::try_from(outcome.timing.total.as_millis())
                .unwrap_or(u64::MAX),
            status: status.number(),
            status_text: status.text(),
            trigger_type: match attempt.trigger {
                Trigger::Scheduled => 0,
                Trigger::Manual => 1,
            },
            attempt_number: attempt.number,
            outcome: class.to_string(),
            verdict: attempt.verdict,
            next_attempt: attempt.next_attempt_at.map(Time),
            timestamp: Time(attempt.started_at),
        }
    }
}

impl<'a> EndpointMessageOut<'a> {
    pub fn new(message: &'a Message, delivery: Delivery, with_content: bool) -> Self {
        Self { message: MessageOut::new(message, with_content), standing: delivery.into() }
    }
}

impl MessageEndpointOut {
    pub fn new(endpoint: &Endpoint, delivery: Delivery) -> Self {
        let endpoint = super::endpoint::EndpointOut::from(endpoint.clone());
        Self {
            id: endpoint.id,
            uid: endpoint.uid,
            url: endpoint.url,
            description: endpoint.description,
            disabled: endpoint.disabled,
            event_types: endpoint.event_types,
            filter_types: endpoint.filter_types,
            channels: endpoint.channels,
            throttle_rate: endpoint.throttle_rate,
            rate_limit: endpoint.rate_limit,
            version: endpoint.version,
            metadata: endpoint.metadata,
            created_at: endpoint.created_at,
            updated_at: endpoint.updated_at,
            standing: delivery.into(),
        }
    }

    /// `url`: where its last attempt went.
    pub fn of_deleted(delivery: Delivery, url: Option<&str>) -> Self {
        let id = delivery.key.endpoint_id;
        Self {
            id: id.to_string(),
            uid: None,
            url: url.map(masked).unwrap_or_default(),
            description: String::new(),
            disabled: true,
            event_types: None,
            filter_types: None,
            channels: None,
            throttle_rate: None,
            rate_limit: None,
            version: 1,
            metadata: Metadata::default(),
            created_at: Time(id.timestamp()),
            updated_at: Time(delivery.ended_at.unwrap_or(id.timestamp())),
            standing: delivery.into(),
        }
    }
}

impl From<Delivery> for Standing {
    fn from(delivery: Delivery) -> Self {
        let status = Status::of(delivery.state);
        Self {
            status: status.number(),
            status_text: status.text(),
            next_attempt: delivery.next_attempt_at.map(Time),
            state: delivery.state.as_str(),
            attempts: delivery.attempts,
            cause: delivery.cause,
        }
    }
}

fn masked(url: &str) -> String {
    Url::parse(url).map_or_else(|_| String::new(), |url| redact::url_for_owner(&url))
}

const BLOCKED: &str = "the endpoint is at an address that this server does not send to; whoever \
                       runs it can allow that (POSTHASTE_ALLOWED_NETWORKS)";

/// Without loss: UTF-8 as it is, anything else as base64. A body that was cut within a character
/// loses the rest of that character, not its readability.
fn response_text(answer: &Answer) -> String {
    let response = match answer {
        Answer::Response(response) => response,
        // Who may create endpoints must not learn from them what lies in our network, and its names
        // and addresses are what the detail tells.
        Answer::Failure(Failure { kind: kind @ FailureKind::Blocked, .. }) => {
            return format!("{}: {BLOCKED}", kind.as_str());
        }
        Answer::Failure(failure) => {
            return format!("{}: {}", failure.kind.as_str(), failure.detail);
        }
    };
    match std::str::from_utf8(&response.body) {
        Ok(text) => text.to_owned(),
        Err(error) if response.body_cut && error.error_len().is_none() => {
            String::from_utf8_lossy(&response.body[..error.valid_up_to()]).into_owned()
        }
        Err(_) => STANDARD.encode(&response.body),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use posthaste_core::outcome::{Phase, Response};

    fn text(body: &[u8], body_cut: bool) -> String {
        let body = Bytes::copy_from_slice(body);
        response_text(&Answer::Response(Response { body, body_cut, ..Response::default() }))
    }

    #[test]
    fn f038_no_answer_is_lost_or_breaks_json() {
        assert_eq!(text(b"ok\0", false), "ok\0");
        assert_eq!(serde_json::to_string(&text(b"ok\0", false)).unwrap(), r#""ok\u0000""#);
        assert_eq!(text(b"\xFF\xFE", false), STANDARD.encode(b"\xFF\xFE"));
        assert_eq!(text("é".as_bytes().split_at(1).0, true), "");
        assert_eq!(text(b"caf\xC3", true), "caf");
        assert_eq!(text(b"caf\xC3", false), STANDARD.encode(b"caf\xC3"));
    }

    #[test]
    fn a_failure_says_its_kind() {
        let failure = Failure {
            kind: FailureKind::Connect,
            phase: Phase::Connect,
            detail: "connection refused".to_owned(),
        };
        assert_eq!(response_text(&Answer::Failure(failure)), "connect: connection refused");
    }

    #[test]
    fn f054_an_address_in_our_network_is_not_told() {
        let failure = Failure {
            kind: FailureKind::Blocked,
            phase: Phase::Resolve,
            detail: "10.0.0.7 is a private address".to_owned(),
        };
        let text = response_text(&Answer::Failure(failure));
        assert!(text.starts_with("blocked: ") && !text.contains("10.0.0.7"), "{text}");
        assert!(text.contains("POSTHASTE_ALLOWED_NETWORKS"), "{text}");
    }

    #[test]
    fn every_state_has_one_status() {
        let all = [Status::Success, Status::Pending, Status::Fail, Status::Sending];
        let mut states: Vec<_> = all.into_iter().flat_map(Status::states).collect();
        states.sort();
        assert_eq!(states, DeliveryState::ALL);
    }

    #[test]
    fn f055_an_attempts_url_is_masked() {
        assert_eq!(
            masked("https://user:pass@hooks.test/x?token=abc"),
            "https://***@hooks.test/x?token=***"
        );
    }
}
