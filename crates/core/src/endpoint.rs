//! Applications and their endpoints: where messages go, and how.

use crate::event::{
    ApplicationUid, Channel, EndpointUid, EventTypeName, FeatureFlag, OrganisationId,
};
use crate::id::{ApplicationId, EndpointId};
use crate::limiter::RateLimit;
use crate::limits;
use crate::retry::RetryPolicy;
use crate::sign::SecretRing;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use url::Url;

pub type Metadata = BTreeMap<String, String>;

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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
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

/// An endpoint's address in the WHATWG normal form: `http` or `https`, with an ASCII host.
///
/// `Debug` shows scheme, host and port only: path, query and user info are payload.
#[derive(Clone, PartialEq, Eq)]
pub struct EndpointUrl(Url);

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
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        if text.len() > limits::URL_BYTES_MAX {
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
}

impl fmt::Debug for EndpointUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.0.host_str().unwrap_or_default();
        write!(f, "{}://{host}", self.0.scheme())?;
        if let Some(port) = self.0.port() {
            write!(f, ":{port}")?;
        }
        f.write_str("/…")
    }
}

/// Headers that an endpoint's owner adds to each request, in the order and case they were given.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EndpointHeaders(Vec<(String, String)>);

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
