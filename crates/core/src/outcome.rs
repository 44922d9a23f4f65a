//! What an attempt brought back: data, never an error.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// One HTTP exchange as the courier saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub answer: Answer,
    pub timing: Timing,
    /// The address that was connected to, if it came that far.
    pub remote: Option<IpAddr>,
}

/// What came back.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Response(Response),
    /// No complete answer within the bounds.
    Failure(Failure),
}

/// A complete answer, whatever its status.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Response {
    pub status: u16,
    /// The first `Retry-After` header, unparsed.
    pub retry_after: Option<String>,
    /// At most `limits::ANSWER_BODY_BYTES_KEPT` bytes.
    pub body: Bytes,
    /// The body was longer than what was kept.
    pub body_cut: bool,
}

/// Why there is no complete answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub kind: FailureKind,
    pub phase: Phase,
    /// For a person; never holds a secret, a URL's path or query, or bytes of the receiver.
    pub detail: String,
}

/// What kept an answer from coming.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The name did not resolve.
    Dns,
    /// Every address refused, was unreachable, or did not answer in time.
    Connect,
    Tls,
    /// The whole exchange took longer than the endpoint's timeout.
    Timeout,
    /// The connection broke before the answer was complete.
    Closed,
    /// What came back is not HTTP, or breaks a bound.
    Protocol,
    /// The address is not one that we may send to.
    Blocked,
    /// Our own trouble, such as no file descriptors; costs the endpoint nothing.
    Local,
}

/// How far the exchange came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Resolve,
    Connect,
    Tls,
    Send,
    Headers,
    Body,
}

/// Where the time went, by a monotonic clock; a phase that did not happen is `None` (a reused
/// connection resolves and connects nothing).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    pub dns: Option<Duration>,
    pub connect: Option<Duration>,
    pub tls: Option<Duration>,
    pub first_byte: Option<Duration>,
    pub total: Duration,
}

/// The class of an outcome: what metrics, logs and policies speak of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OutcomeClass {
    Success,
    /// A complete answer that is not 2xx.
    Status(u16),
    Failure(FailureKind),
}

impl Outcome {
    pub fn class(&self) -> OutcomeClass {
        match &self.answer {
            Answer::Response(response) if (200..300).contains(&response.status) => {
                OutcomeClass::Success
            }
            Answer::Response(response) => OutcomeClass::Status(response.status),
            Answer::Failure(failure) => OutcomeClass::Failure(failure.kind),
        }
    }

    /// The status of a complete answer.
    pub fn status(&self) -> Option<u16> {
        match &self.answer {
            Answer::Response(response) => Some(response.status),
            Answer::Failure(_) => None,
        }
    }

    pub fn retry_after(&self) -> Option<&str> {
        match &self.answer {
            Answer::Response(response) => response.retry_after.as_deref(),
            Answer::Failure(_) => None,
        }
    }
}

impl FailureKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Timeout => "timeout",
            Self::Closed => "closed",
            Self::Protocol => "protocol",
            Self::Blocked => "blocked",
            Self::Local => "local",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [
            Self::Dns,
            Self::Connect,
            Self::Tls,
            Self::Timeout,
            Self::Closed,
            Self::Protocol,
            Self::Blocked,
            Self::Local,
        ]
        .into_iter()
        .find(|kind| kind.as_str() == text)
    }
}

impl Phase {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Resolve => "resolve",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Send => "send",
            Self::Headers => "headers",
            Self::Body => "body",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Resolve, Self::Connect, Self::Tls, Self::Send, Self::Headers, Self::Body]
            .into_iter()
            .find(|phase| phase.as_str() == text)
    }
}

impl fmt::Display for OutcomeClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => f.write_str("success"),
            Self::Status(status) => write!(f, "status_{status}"),
            Self::Failure(kind) => f.write_str(kind.as_str()),
        }
    }
}
