//! Endpoints on the wire.
//!
//! Beside what Svix has, an endpoint has a `policy`: its own retries, timeout, rate limit, final
//! statuses and user agent. A PUT without it keeps it, as it keeps secrets and headers, so that
//! clients that do not know it do not wipe it out.

use crate::error::Problems;
use crate::wire::message::channels;
use crate::wire::time::Time;
use crate::wire::{metadata, not_null, nullable, plain_text, throttle_rate};
use posthaste_core::endpoint::{
    DisabledReason, Endpoint, EndpointPolicy, EndpointUrl, Metadata, PolicyError, UrlError,
};
use posthaste_core::event::{Channel, EndpointUid, EventTypeName};
use posthaste_core::limiter::RateLimit;
use posthaste_core::limits::{ENDPOINT_CHANNELS_MAX, ENDPOINT_EVENT_TYPES_MAX};
use posthaste_core::retry::RetryPolicy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// To create or replace an endpoint.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EndpointIn {
    pub url: String,
    #[serde(default, deserialize_with = "nullable")]
    #[schemars(with = "Option<String>")]
    pub uid: Option<Option<String>>,
    pub description: Option<String>,
    pub disabled: Option<bool>,
    pub event_types: Option<Vec<String>>,
    /// Old name of `eventTypes`.
    pub filter_types: Option<Vec<String>>,
    pub channels: Option<Vec<String>>,
    /// Messages a second.
    pub throttle_rate: Option<u16>,
    /// Old name of `throttleRate`.
    pub rate_limit: Option<u16>,
    /// Has no meaning any more.
    pub version: Option<u16>,
    pub metadata: Option<Metadata>,
    /// `whsec_...` or `whsk_...`; made by the server if absent. Only when it is created.
    pub secret: Option<String>,
    /// Added to each request. Only when it is created.
    #[schemars(with = "Option<std::collections::BTreeMap<String, String>>")]
    pub headers: Option<super::misc::Pairs<String>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schemars(with = "Option<Policy>")]
    pub policy: Option<Option<Policy>>,
}

/// To change some fields of an endpoint.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EndpointPatch {
    #[serde(default, deserialize_with = "not_null")]
    #[schemars(with = "String")]
    pub url: Option<String>,
    #[serde(default, deserialize_with = "nullable")]
    #[schemars(with = "Option<String>")]
    pub uid: Option<Option<String>>,
    #[serde(default, deserialize_with = "not_null")]
    #[schemars(with = "String")]
    pub description: Option<String>,
    #[serde(default, deserialize_with = "not_null")]
    #[schemars(with = "bool")]
    pub disabled: Option<bool>,
    #[serde(default, deserialize_with = "nullable")]
    #[schemars(with = "Option<Vec<String>>")]
    pub event_types: Option<Option<Vec<String>>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schemars(with = "Option<Vec<String>>")]
    pub filter_types: Option<Option<Vec<String>>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schemars(with = "Option<Vec<String>>")]
    pub channels: Option<Option<Vec<String>>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schemars(with = "Option<u16>")]
    pub throttle_rate: Option<Option<u16>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schemars(with = "Option<u16>")]
    pub rate_limit: Option<Option<u16>>,
    #[serde(default, deserialize_with = "not_null")]
    #[schemars(with = "u16")]
    pub version: Option<u16>,
    #[serde(default, deserialize_with = "nullable")]
    #[schemars(with = "Option<Metadata>")]
    pub metadata: Option<Option<Metadata>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schemars(with = "Option<Policy>")]
    pub policy: Option<Option<Policy>>,
}

/// What an endpoint has of its own; what is absent follows the server's settings.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "EndpointPolicy")]
pub(crate) struct Policy {
    /// `{"kind": "full_jitter", "baseMs", "factor", "capMs", "attemptsMax"}`, or
    /// `{"kind": "schedule", "delaysMs", "jitter"}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")]
    pub retry: Option<RetryPolicy>,
    /// For the whole exchange, in milliseconds, at most 60,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u32>,
    /// `{"count", "periodMs", "burst"}`; goes before `throttleRate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")]
    pub rate_limit: Option<RateLimit>,
    /// Statuses that end a delivery at once, beside 410.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub final_statuses: Vec<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EndpointOut {
    pub id: String,
    pub uid: Option<String>,
    /// Without the password, if it has one. Written back like this, it stays what it is.
    pub url: String,
    pub description: String,
    pub disabled: bool,
    /// Why it is disabled: `manual`, `gone` (it answered 410) or `failing`.
    pub disabled_reason: Option<DisabledReasonOut>,
    pub event_types: Option<Vec<String>>,
    pub filter_types: Option<Vec<String>>,
    pub channels: Option<Vec<String>>,
    pub throttle_rate: Option<u16>,
    pub rate_limit: Option<u16>,
    pub version: u16,
    pub metadata: Metadata,
    pub policy: Policy,
    pub created_at: Time,
    pub updated_at: Time,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "DisabledReason")]
pub(crate) enum DisabledReasonOut {
    Manual,
    Gone,
    Failing,
}

/// The checked fields that a create and a PUT have in common.
#[derive(Debug)]
pub(crate) struct EndpointDraft {
    pub url: EndpointUrl,
    /// `None`: not given; `Some(None)`: given as `null`.
    pub uid: Option<Option<EndpointUid>>,
    pub description: String,
    pub disabled: bool,
    pub event_types: Option<Vec<EventTypeName>>,
    pub channels: Option<Vec<Channel>>,
    pub throttle_rate: Option<u16>,
    pub version: u16,
    pub metadata: Metadata,
    /// `None`: not given.
    pub policy: Option<EndpointPolicy>,
}

impl EndpointIn {
    /// `before`: the endpoint that is replaced, for a URL that is given as it was shown.
    pub fn checked(
        &mut self,
        problems: &mut Problems,
        before: Option<&Endpoint>,
        https_only: bool,
    ) -> Option<EndpointDraft> {
        let url = url(problems, &self.url, before, https_only);
        let uid = self.uid.take();
        let types = (self.event_types.take(), self.filter_types.take());
        let policy = self.policy.take();
        let description = self.description.take().unwrap_or_default();
        let draft = EndpointDraft {
            uid: uid.map(|given| self::uid(problems, given)),
            description: plain_text(problems, "description", description),
            disabled: self.disabled.unwrap_or_default(),
            event_types: one_of_two(problems, types)
                .and_then(|(field, names)| event_types(problems, field, &names)),
            channels: channels(problems, self.channels.as_deref(), ENDPOINT_CHANNELS_MAX),
            throttle_rate: throttle_rate(problems, self.throttle_rate, self.rate_limit),
            version: version(problems, self.version.unwrap_or(1)),
            metadata: metadata(problems, self.metadata.take()),
            policy: policy.map(|given| policy_of(problems, given.unwrap_or_default())),
            url: url?,
        };
        Some(draft)
    }
}

impl EndpointDraft {
    /// Writes the draft over the endpoint; the uid is the caller's affair.
    pub fn write_to(self, endpoint: &mut Endpoint) {
        endpoint.url = self.url;
        endpoint.description = self.description;
        endpoint.disabled = disabled(endpoint.disabled, self.disabled);
        endpoint.event_types = self.event_types;
        endpoint.channels = self.channels;
        endpoint.throttle_rate = self.throttle_rate;
        endpoint.version = self.version;
        endpoint.metadata = self.metadata;
        if let Some(policy) = self.policy {
            endpoint.policy = policy;
        }
    }
}

impl EndpointPatch {
    /// Changes what the patch names. The event types' existence is the caller's affair.
    pub fn apply(mut self, problems: &mut Problems, endpoint: &mut Endpoint, https_only: bool) {
        if let Some(text) = self.url.take()
            && let Some(url) = url(problems, &text, Some(endpoint), https_only)
        {
            endpoint.url = url;
        }
        if let Some(given) = self.uid.take() {
            endpoint.uid = uid(problems, given);
        }
        if let Some(given) = self.description.take() {
            endpoint.description = plain_text(problems, "description", given);
        }
        if let Some(wanted) = self.disabled {
            endpoint.disabled = disabled(endpoint.disabled, wanted);
        }
        if self.event_types.is_some() || self.filter_types.is_some() {
            let given = (self.event_types.take().flatten(), self.filter_types.take().flatten());
            endpoint.event_types = one_of_two(problems, given)
                .and_then(|(field, names)| event_types(problems, field, &names));
        }
        if let Some(given) = self.channels.take() {
            endpoint.channels = channels(problems, given.as_deref(), ENDPOINT_CHANNELS_MAX);
        }
        if self.throttle_rate.is_some() || self.rate_limit.is_some() {
            let old_name = if self.throttle_rate.is_some() { None } else { self.rate_limit };
            endpoint.throttle_rate =
                throttle_rate(problems, self.throttle_rate.flatten(), old_name.flatten());
        }
        if let Some(given) = self.version {
            endpoint.version = version(problems, given);
        }
        if let Some(given) = self.metadata.take() {
            endpoint.metadata = metadata(problems, given);
        }
        if let Some(given) = self.policy.take() {
            endpoint.policy = policy_of(problems, given.unwrap_or_default());
        }
    }
}

impl From<Endpoint> for EndpointOut {
    fn from(endpoint: Endpoint) -> Self {
        let texts = |names: Vec<EventTypeName>| names.into_iter().map(String::from).collect();
        let event_types: Option<Vec<String>> = endpoint.event_types.map(texts);
        Self {
            id: endpoint.id.to_string(),
            uid: endpoint.uid.map(String::from),
            url: shown_url(&endpoint.url),
            description: endpoint.description,
            disabled: endpoint.disabled.is_some(),
            disabled_reason: endpoint.disabled.map(DisabledReasonOut::from),
            filter_types: event_types.clone(),
            event_types,
            channels: endpoint.channels.map(|list| list.into_iter().map(String::from).collect()),
            throttle_rate: endpoint.throttle_rate,
            rate_limit: endpoint.throttle_rate,
            version: endpoint.version,
            metadata: endpoint.metadata,
            policy: Policy::from(endpoint.policy),
            created_at: Time(endpoint.created_at),
            updated_at: Time(endpoint.updated_at),
        }
    }
}

impl From<DisabledReason> for DisabledReasonOut {
    fn from(reason: DisabledReason) -> Self {
        match reason {
            DisabledReason::Manual => Self::Manual,
            DisabledReason::Gone => Self::Gone,
            DisabledReason::Failing => Self::Failing,
        }
    }
}

impl From<EndpointPolicy> for Policy {
    fn from(policy: EndpointPolicy) -> Self {
        Self {
            retry: policy.retry,
            timeout_ms: policy.timeout_ms,
            rate_limit: policy.rate_limit,
            final_statuses: policy.final_statuses,
            user_agent: policy.user_agent,
        }
    }
}

const MASK: &str = "***";

/// The URL as its owner sees it. The query stays readable, because owners edit their URLs by
/// reading and writing them back; the password does not.
pub(crate) fn shown_url(url: &EndpointUrl) -> String {
    if url.as_url().password().is_none() {
        return url.as_str().to_owned();
    }
    let mut shown = url.as_url().clone();
    // Fails only for URLs without a host, which an endpoint's never is.
    let _ = shown.set_password(Some(MASK));
    shown.into()
}

fn url(
    problems: &mut Problems,
    text: &str,
    before: Option<&Endpoint>,
    https_only: bool,
) -> Option<EndpointUrl> {
    let parsed = EndpointUrl::parse(text).and_then(|url| match https_only && !url.is_https() {
        true => Err(UrlError::HttpsOnly),
        false => Ok(url),
    });
    let url = problems.take("url", parsed)?;
    match before {
        Some(endpoint) if url.as_str() == shown_url(&endpoint.url) => Some(endpoint.url.clone()),
        _ => Some(url),
    }
}

fn uid(problems: &mut Problems, given: Option<String>) -> Option<EndpointUid> {
    given.and_then(|text| problems.take("uid", EndpointUid::new(&text)))
}

fn version(problems: &mut Problems, given: u16) -> u16 {
    if given == 0 {
        problems.add("version", "must be at least 1");
    }
    given
}

/// An endpoint that disabled itself keeps its reason when it is disabled once more.
fn disabled(before: Option<DisabledReason>, wanted: bool) -> Option<DisabledReason> {
    wanted.then(|| before.unwrap_or(DisabledReason::Manual))
}

fn one_of_two(
    problems: &mut Problems,
    given: (Option<Vec<String>>, Option<Vec<String>>),
) -> Option<(&'static str, Vec<String>)> {
    match given {
        (Some(types), Some(old)) if types != old => {
            problems.add("filterTypes", "is the old name of `eventTypes`; give one of them");
            None
        }
        (Some(types), _) => Some(("eventTypes", types)),
        (None, Some(types)) => Some(("filterTypes", types)),
        (None, None) => None,
    }
}

fn event_types(
    problems: &mut Problems,
    field: &str,
    given: &[String],
) -> Option<Vec<EventTypeName>> {
    if given.is_empty() || given.len() > ENDPOINT_EVENT_TYPES_MAX {
        let message = format!("must be `null` or 1 to {ENDPOINT_EVENT_TYPES_MAX} event types");
        problems.add(field, message);
        return None;
    }
    let mut names = Vec::with_capacity(given.len());
    for (index, text) in given.iter().enumerate() {
        match EventTypeName::new(text) {
            Ok(name) => names.push(name),
            Err(error) => problems.add_at(&[field, &format!("[{index}]")], error),
        }
    }
    Some(names)
}

/// The domain's own bounds: what they refuse could be written but never be read again.
fn policy_of(problems: &mut Problems, given: Policy) -> EndpointPolicy {
    let policy = EndpointPolicy {
        retry: given.retry,
        timeout_ms: given.timeout_ms,
        rate_limit: given.rate_limit,
        final_statuses: given.final_statuses,
        user_agent: given.user_agent,
    };
    policy.checked().unwrap_or_else(|error| {
        let field = match error {
            PolicyError::Retry(_) => "retry",
            PolicyError::RateLimit(_) => "rateLimit",
            PolicyError::Timeout => "timeoutMs",
            PolicyError::FinalStatus | PolicyError::FinalStatusCount => "finalStatuses",
            PolicyError::UserAgent => "userAgent",
        };
        problems.add_at(&["policy", field], error);
        EndpointPolicy::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f055_the_password_is_not_shown_and_survives_being_written_back() {
        let url = EndpointUrl::parse("https://user:p%40ss@hooks.test/x?token=abc").unwrap();
        let shown = shown_url(&url);
        assert_eq!(shown, "https://user:***@hooks.test/x?token=abc");
        let bare = EndpointUrl::parse("https://hooks.test/x?token=abc").unwrap();
        assert_eq!(shown_url(&bare), bare.as_str());
    }

    #[test]
    fn a_policy_out_of_bounds_names_the_field() {
        for (policy, field) in [
            (r#"{"timeoutMs":0}"#, "timeoutMs"),
            (r#"{"timeoutMs":60001}"#, "timeoutMs"),
            (r#"{"finalStatuses":[200]}"#, "finalStatuses"),
            (&format!(r#"{{"finalStatuses":{:?}}}"#, vec![404; 65]), "finalStatuses"),
            (r#"{"userAgent":"a\nb"}"#, "userAgent"),
            (r#"{"userAgent":" a"}"#, "userAgent"),
            (r#"{"rateLimit":{"count":0,"periodMs":1000}}"#, "rateLimit"),
            (r#"{"retry":{"kind":"schedule","delaysMs":[1],"jitter":2}}"#, "jitter"),
            (r#"{"unknown":1}"#, "unknown"),
        ] {
            let body = format!(r#"{{"policy":{policy}}}"#);
            let refusal = match crate::wire::decode::<EndpointPatch>(body.as_bytes()) {
                Err(refusal) => refusal,
                Ok(patch) => {
                    let mut problems = Problems::default();
                    policy_of(&mut problems, patch.policy.flatten().unwrap());
                    problems.refusal()
                }
            };
            let answer = refusal.answer();
            let text = std::str::from_utf8(&answer.body).unwrap();
            assert!(text.contains(field) && text.contains("policy"), "{policy} gave {text}");
        }
    }
}
