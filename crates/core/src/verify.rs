//! Checks Standard Webhooks signatures on raw bytes, with a tolerance for clocks.
//!
//! **Invariant:** nothing is accepted without at least one key, and comparisons take a time that
//! does not depend on where a forged signature goes wrong.

use crate::limits::{OLD_SECRETS_MAX, TIMESTAMP_TOLERANCE};
use crate::sign::{
    ED25519_PUBLIC_PREFIX, ED25519_SCHEME, HMAC_SCHEME, Secret, SecretError, Verifying, decode,
    same,
};
use crate::time::Timestamp;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use ring::signature::{ED25519, UnparsedPublicKey};
use std::fmt;
use std::time::Duration;

const ED25519_PUBLIC_BYTES: usize = 32;
/// Entries of one signature header that are looked at; a ring has no more secrets.
const SIGNATURES_MAX: usize = 2 * (OLD_SECRETS_MAX + 1);
/// Both families of header names, in the order in which they are looked for.
const NAMES: [[&str; 3]; 2] = [
    ["webhook-id", "webhook-timestamp", "webhook-signature"],
    ["svix-id", "svix-timestamp", "svix-signature"],
];

/// Verifies with any of several keys; `Debug` shows how many, never which.
#[derive(Clone)]
pub struct Verifier {
    keys: Vec<Key>,
    tolerance: Duration,
}

#[derive(Clone)]
enum Key {
    Hmac(hmac::Key),
    Ed25519(UnparsedPublicKey<Vec<u8>>),
}

/// The three headers that a signature is about.
#[derive(Clone, Copy, Debug)]
pub struct SignedHeaders<'a> {
    pub id: &'a str,
    pub timestamp: &'a str,
    pub signature: &'a str,
}

/// What a good signature vouches for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified<'a> {
    /// The same on every attempt: what to deduplicate by.
    pub id: &'a str,
    /// When the attempt was signed, to the second.
    pub signed_at: Timestamp,
    /// Which of the verifier's keys matched, counted from 0.
    pub key: usize,
}

/// Why a request is not to be believed. Says nothing that would help a forger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    #[error("the header `{0}` is missing")]
    Missing(&'static str),
    #[error("the timestamp is not a number of seconds")]
    Timestamp,
    /// The skew tells a wrong clock from a captured request.
    #[error("the timestamp is {skew_secs} s too old to be accepted; check the clocks")]
    TooOld { skew_secs: u64 },
    #[error("the timestamp is {skew_secs} s in the future; check the clocks")]
    TooNew { skew_secs: u64 },
    #[error("the signature header has no signature of a kind that can be checked")]
    NoSignature,
    #[error("no signature matches: wrong secret, or the body is not the bytes that were sent")]
    Mismatch,
}

impl Rejection {
    /// A short name for metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Missing(_) => "missing_header",
            Self::Timestamp => "malformed_timestamp",
            Self::TooOld { .. } => "too_old",
            Self::TooNew { .. } => "too_new",
            Self::NoSignature => "no_signature",
            Self::Mismatch => "mismatch",
        }
    }
}

impl Verifier {
    /// A verifier for one or more secrets (`whsec_...`) or public keys (`whpk_...`), with a
    /// tolerance of 300 s.
    pub fn new<S: AsRef<str>>(keys: impl IntoIterator<Item = S>) -> Result<Self, SecretError> {
        let keys = keys.into_iter().map(|key| Key::parse(key.as_ref())).collect::<Result<_, _>>();
        Self::with_keys(keys?)
    }

    /// How far the timestamp may be from now, either way, to the second.
    #[must_use]
    pub fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// Verifies a request. `header` gives the value of the header of a lower-case name; the
    /// `webhook-` and the `svix-` names are looked for. `payload` is the body as it was received,
    /// before any parsing.
    pub fn verify<'a>(
        &self,
        header: impl Fn(&str) -> Option<&'a str>,
        payload: &[u8],
        now: Timestamp,
    ) -> Result<Verified<'a>, Rejection> {
        let names = NAMES.iter().find(|names| header(names[2]).is_some()).unwrap_or(&NAMES[0]);
        let value = |name| header(name).filter(|value| !value.is_empty());
        let get = |name: &'static str| value(name).ok_or(Rejection::Missing(name));
        let headers = SignedHeaders {
            id: get(names[0])?,
            timestamp: get(names[1])?,
            signature: get(names[2])?,
        };
        self.verify_headers(headers, payload, now)
    }

    /// As `verify`, for headers that were found already.
    pub fn verify_headers<'a>(
        &self,
        headers: SignedHeaders<'a>,
        payload: &[u8],
        now: Timestamp,
    ) -> Result<Verified<'a>, Rejection> {
        let signed_at = self.check_time(headers.timestamp, now)?;
        let mut candidates = headers
            .signature
            .split(' ')
            .filter(|entry| entry.starts_with(HMAC_SCHEME) || entry.starts_with(ED25519_SCHEME))
            .take(SIGNATURES_MAX)
            .peekable();
        if candidates.peek().is_none() {
            return Err(Rejection::NoSignature);
        }
        let candidates: Vec<_> = candidates.collect();
        let head = format!("{}.{}.", headers.id, headers.timestamp);
        let key = self.keys.iter().position(|key| key.accepts(&candidates, &head, payload));
        let key = key.ok_or(Rejection::Mismatch)?;
        Ok(Verified { id: headers.id, signed_at, key })
    }

    fn with_keys(keys: Vec<Key>) -> Result<Self, SecretError> {
        if keys.is_empty() {
            return Err(SecretError("at least one secret is needed".to_owned()));
        }
        Ok(Self { keys, tolerance: TIMESTAMP_TOLERANCE })
    }

    fn check_time(&self, text: &str, now: Timestamp) -> Result<Timestamp, Rejection> {
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Rejection::Timestamp);
        }
        let secs: i64 = text.parse().map_err(|_| Rejection::Timestamp)?;
        let skew_secs = secs.abs_diff(now.as_secs());
        if skew_secs <= self.tolerance.as_secs() {
            Ok(Timestamp::from_secs(secs))
        } else if secs < now.as_secs() {
            Err(Rejection::TooOld { skew_secs })
        } else {
            Err(Rejection::TooNew { skew_secs })
        }
    }
}

impl From<&Secret> for Verifier {
    /// Verifies what `secret` signs.
    fn from(secret: &Secret) -> Self {
        Self { keys: vec![Key::of(secret)], tolerance: TIMESTAMP_TOLERANCE }
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier")
            .field("keys", &self.keys.len())
            .field("tolerance", &self.tolerance)
            .finish()
    }
}

impl Key {
    fn parse(text: &str) -> Result<Self, SecretError> {
        let Some(digits) = text.trim().strip_prefix(ED25519_PUBLIC_PREFIX) else {
            return Secret::parse(text).map(|secret| Self::of(&secret));
        };
        let bytes = decode(digits)?;
        if bytes.len() != ED25519_PUBLIC_BYTES {
            return Err(SecretError("`whpk_` must be followed by 32 bytes".to_owned()));
        }
        Ok(Self::Ed25519(UnparsedPublicKey::new(&ED25519, bytes)))
    }

    fn of(secret: &Secret) -> Self {
        match secret.verifying() {
            Verifying::Hmac(key) => Self::Hmac(key.clone()),
            Verifying::Ed25519(public) => {
                Self::Ed25519(UnparsedPublicKey::new(&ED25519, public.to_vec()))
            }
        }
    }

    /// Whether one of the entries of a signature header is this key's signature.
    fn accepts(&self, candidates: &[&str], head: &str, payload: &[u8]) -> bool {
        let of_scheme = |scheme| candidates.iter().filter_map(move |it| it.strip_prefix(scheme));
        match self {
            Self::Hmac(key) => {
                let mut context = hmac::Context::with_key(key);
                context.update(head.as_bytes());
                context.update(payload);
                let expected = STANDARD.encode(context.sign());
                of_scheme(HMAC_SCHEME).any(|entry| same(entry.as_bytes(), expected.as_bytes()))
            }
            Self::Ed25519(public) => {
                let mut signatures = of_scheme(ED25519_SCHEME).peekable();
                if signatures.peek().is_none() {
                    return false;
                }
                let content = [head.as_bytes(), payload].concat();
                signatures
                    .filter_map(|entry| STANDARD.decode(entry).ok())
                    .any(|signature| public.verify(&content, &signature).is_ok())
            }
        }
    }
}

#[cfg(test)]
mod tests;
