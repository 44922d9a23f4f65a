//! Applications and their endpoints: where messages go, and how.

use crate::event::{
    ApplicationUid, Channel, EndpointUid, EventTypeName, FeatureFlag, OrganisationId,
};
use crate::id::{ApplicationId, EndpointId};
use crate::limiter::{RateLimit, RateLimitError};
use crate::limits;
use crate::redact;
use crate::retry::{RetryPolicy, RetryPolicyError};
use crate::sign::SecretRing;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use url::Url;

/// An owner's own words about a thing; in the order of their names.
pub type Metadata = BTreeMap<String, String>;

/// The owner of endpoints and messages, within an organisation.
#[derive(Clone, Debug, PartialEq)]
pub struct Application {
    pub id: ApplicationId,
    pub organisation_id: OrganisationId,
    pub uid: Option<ApplicationUid>,
    pub name: String,
    /// Messages a second over all its endpoints.
    pub throttle_rate: Option<u16>,
    pub metadata: Metadata,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// Where messages of an application go, and how. `updated_at` is its version.
#[derive(Clone, PartialEq)]
pub struct Endpoint {
    pub id: EndpointId,
    pub application_id: ApplicationId,
    pub uid: Option<EndpointUid>,
    pub url: EndpointUrl,
    pub description: String,
    pub disabled: Option<DisabledReason>,
    /// `None`: every event type.
    pub event_types: Option<Vec<EventTypeName>>,
    /// `None`: messages with any channels or none.
    pub channels: Option<Vec<Channel>>,
    /// Messages a second.
    pub throttle_rate: Option<u16>,
    /// Kept for old clients; has no meaning.
    pub version: u16,
    pub metadata: Metadata,
    pub headers: EndpointHeaders,
    pub secrets: SecretRing,
    pub policy: EndpointPolicy,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// What an endpoint has of its own, where the global settings do not fit it.
///
/// One that was read (`Deserialize`) or came out of `checked` keeps its bounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", try_from = "UncheckedPolicy")]
pub struct EndpointPolicy {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    /// Whole-exchange timeout in milliseconds, at most `limits::TIMEOUT_MAX`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u32>,
    /// Overrides `throttle_rate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    /// Statuses that end the delivery at once, beside 410.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub final_statuses: Vec<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<String>,
}

/// Which bound an endpoint's policy breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("`retry`: {0}")]
    Retry(#[from] RetryPolicyError),
    #[error("`rateLimit`: {0}")]
    RateLimit(#[from] RateLimitError),
    #[error("`timeoutMs` must be between 1 and {}", limits::TIMEOUT_MAX.as_millis())]
    Timeout,
    #[error("`finalStatuses` may only hold statuses from 300 to 599")]
    FinalStatus,
    #[error("`finalStatuses` may hold at most {} statuses", limits::FINAL_STATUSES_MAX)]
    FinalStatusCount,
    #[error(
        "`userAgent` must be 1 to {} visible ASCII characters and blanks",
        limits::NAME_BYTES_MAX
    )]
    UserAgent,
}

/// Why an endpoint gets nothing for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DisabledReason {
    /// A person or a program disabled it.
    Manual,
    /// It answered 410.
    Gone,
    /// It failed without a break for too long.
    Failing,
}

/// What an organisation says about the messages it sends under one name.
#[derive(Clone, Debug, PartialEq)]
pub struct EventType {
    pub organisation_id: OrganisationId,
    pub name: EventTypeName,
    pub description: String,
    pub archived: bool,
    pub deprecated: bool,
    /// JSON Schemas by version as the client wrote them: a JSON object, or nothing.
    pub schemas: Option<String>,
    pub feature_flag: Option<FeatureFlag>,
    pub group_name: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Endpoint {
    /// The rate in force for this endpoint.
    pub fn rate_limit(&self) -> Option<RateLimit> {
        self.policy.rate_limit.or_else(|| self.throttle_rate.map(RateLimit::per_second))
    }

    pub fn timeout(&self, default: Duration) -> Duration {
        let own = self.policy.timeout_ms.map(|ms| Duration::from_millis(ms.into()));
        own.unwrap_or(default).min(limits::TIMEOUT_MAX)
    }
}

impl EndpointPolicy {
    /// Refuses a policy that breaks a bound.
    pub fn checked(mut self) -> Result<Self, PolicyError> {
        self.retry = self.retry.map(RetryPolicy::checked).transpose()?;
        self.rate_limit = self.rate_limit.map(RateLimit::checked).transpose()?;
        let timeout_in_bounds =
            |ms: &u32| *ms > 0 && Duration::from_millis((*ms).into()) <= limits::TIMEOUT_MAX;
        if !self.timeout_ms.as_ref().is_none_or(timeout_in_bounds) {
            return Err(PolicyError::Timeout);
        }
        if self.final_statuses.len() > limits::FINAL_STATUSES_MAX {
            return Err(PolicyError::FinalStatusCount);
        }
        if !self.final_statuses.iter().all(|status| (300..600).contains(status)) {
            return Err(PolicyError::FinalStatus);
        }
        if !self.user_agent.as_deref().is_none_or(is_user_agent) {
            return Err(PolicyError::UserAgent);
        }
        Ok(self)
    }
}

fn is_user_agent(text: &str) -> bool {
    let visible = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    (1..=limits::NAME_BYTES_MAX).contains(&text.len())
        && text.trim() == text
        && text.bytes().all(visible)
}

/// The wire form of a policy, before its bounds are checked.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct UncheckedPolicy {
    retry: Option<RetryPolicy>,
    timeout_ms: Option<u32>,
    rate_limit: Option<RateLimit>,
    final_statuses: Vec<u16>,
    user_agent: Option<String>,
}

impl TryFrom<UncheckedPolicy> for EndpointPolicy {
    type Error = PolicyError;

    fn try_from(raw: UncheckedPolicy) -> Result<Self, PolicyError> {
        Self {
            retry: raw.retry,
            timeout_ms: raw.timeout_ms,
            rate_limit: raw.rate_limit,
            final_statuses: raw.final_statuses,
            user_agent: raw.user_agent,
        }
        .checked()
    }
}

impl fmt::Debug for Endpoint {
    /// Shows what tells it apart, nothing that is secret or personal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("id", &self.id)
            .field("url", &self.url)
            .field("disabled", &self.disabled)
            .finish_non_exhaustive()
    }
}

/// No spelling of a URL of the greatest length is longer, but for what is dropped anyway.
const URL_TEXT_BYTES_MAX: usize = 4 * limits::URL_BYTES_MAX;

/// An endpoint's address in the WHATWG normal form: `http` or `https`, with an ASCII host.
///
/// `Debug` shows scheme, host and port only: path, query and user info are payload.
#[derive(Clone, PartialEq, Eq)]
pub struct EndpointUrl(Url);

/// Why a text is no endpoint's address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("is not a URL: {0}")]
    Malformed(url::ParseError),
    #[error("must start with `http://` or `https://`")]
    Scheme,
    #[error("must start with `https://`: this server allows no others")]
    HttpsOnly,
    #[error("has no host")]
    Host,
    #[error("must not be longer than {} bytes", limits::URL_BYTES_MAX)]
    Length,
}

impl EndpointUrl {
    /// Reads a URL in any spelling; the length that counts is that of its normal form.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        if text.len() > URL_TEXT_BYTES_MAX {
            return Err(UrlError::Length);
        }
        let mut url = Url::parse(text).map_err(UrlError::Malformed)?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(UrlError::Scheme);
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err(UrlError::Host);
        }
        url.set_fragment(None);
        if url.as_str().len() > limits::URL_BYTES_MAX {
            return Err(UrlError::Length);
        }
        Ok(Self(url))
    }

    pub fn as_url(&self) -> &Url {
        &self.0
    }

    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    pub fn is_https(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// What the endpoint's owner may see in an answer: user info and query values are masked.
    pub fn masked(&self) -> String {
        redact::url_for_owner(&self.0)
    }
}

impl fmt::Debug for EndpointUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redact::url_for_log(&self.0))
    }
}

/// Headers that an endpoint's owner adds to each request, in the order and case they were given.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EndpointHeaders(Vec<(String, String)>);

/// Why headers cannot be added to requests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("`{0}` is not a header name")]
    Name(String),
    #[error("`{0}` is set by the server and cannot be configured")]
    Reserved(String),
    #[error("`{0}` is named twice")]
    Twice(String),
    #[error("the value of `{0}` is not a header value of at most 4096 bytes")]
    Value(String),
    #[error("at most {} headers", limits::ENDPOINT_HEADERS_MAX)]
    Count,
}

const RESERVED_NAMES: [&str; 22] = [
    "age",
    "cache-control",
    "clear-site-data",
    "connection",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-type",
    "expires",
    "host",
    "keep-alive",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "trailers",
    "transfer-encoding",
    "upgrade",
    "warning",
];
const RESERVED_PREFIXES: [&str; 10] = [
    "svix-", "webhook-", "x-amz-", "x-amzn-", "x-azure-", "x-fd-", "x-gfe", "x-goog-", "x-google",
    "x-svix-",
];
const SENSITIVE_NAMES: [&str; 8] = [
    "authorization",
    "cookie",
    "proxy-authenticate",
    "proxy-authorization",
    "www-authenticate",
    "x-api-key",
    "x-auth-token",
    "x-signature-key",
];

impl EndpointHeaders {
    /// Names are compared without case. `user-agent` is reserved too: it is a policy of its own.
    pub fn new(headers: Vec<(String, String)>) -> Result<Self, HeaderError> {
        if headers.len() > limits::ENDPOINT_HEADERS_MAX {
            return Err(HeaderError::Count);
        }
        for (index, (name, value)) in headers.iter().enumerate() {
            let is_token =
                |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            if name.is_empty() || name.len() > limits::NAME_BYTES_MAX || !name.bytes().all(is_token)
            {
                return Err(HeaderError::Name(name.clone()));
            }
            let lower = name.to_ascii_lowercase();
            if lower == "user-agent"
                || RESERVED_NAMES.contains(&lower.as_str())
                || RESERVED_PREFIXES.iter().any(|prefix| lower.starts_with(prefix))
            {
                return Err(HeaderError::Reserved(name.clone()));
            }
            let visible = |byte: u8| byte == b'\t' || (byte >= 0x20 && byte != 0x7F);
            if value.len() > limits::HEADER_VALUE_BYTES_MAX || !value.bytes().all(visible) {
                return Err(HeaderError::Value(name.clone()));
            }
            if headers[..index].iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
                return Err(HeaderError::Twice(name.clone()));
            }
        }
        Ok(Self(headers))
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a value under this name is withheld from every reader.
    pub fn is_sensitive(name: &str) -> bool {
        SENSITIVE_NAMES.iter().any(|sensitive| sensitive.eq_ignore_ascii_case(name))
    }
}

impl fmt::Debug for EndpointHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests;
