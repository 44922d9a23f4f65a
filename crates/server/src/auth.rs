//! Who is calling: HS256 tokens (RFC 7515, RFC 7519), made and checked.
//!
//! An *organisation token* has `sub: org_...` and may do everything within its organisation. An
//! *application token* has `org: org_...` beside `sub: app_...` and may only do what an
//! application's owner needs. There is no table of tokens: whoever has the key can mint one, and
//! changing the key revokes all.
//!
//! **Invariant:** the algorithm is fixed. A header that names another one is refused before any
//! signature is looked at.
//!
//! **Invariant:** no token and no key is ever written to a log, an error or a `Debug` text.

use crate::error::{Refusal, Result};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use posthaste_core::event::{FeatureFlag, OrganisationId};
use posthaste_core::id::ApplicationId;
use posthaste_core::time::Timestamp;
use ring::hmac;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// How far clocks may be apart: an expired or not yet valid token is accepted for so long.
pub const CLOCK_TOLERANCE: Duration = Duration::from_secs(5 * 60);
/// How long an organisation token lives unless told otherwise: ten years.
pub const ORGANISATION_TOKEN_LIVES: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);
/// How long an application token lives unless told otherwise: seven days, because it cannot be
/// revoked on its own.
pub const APPLICATION_TOKEN_LIVES: Duration = Duration::from_secs(7 * 24 * 3_600);
/// The longest life an application token may ask for.
pub const APPLICATION_TOKEN_LIVES_MAX: Duration = Duration::from_secs(28 * 24 * 3_600);

const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// Verified tokens remembered, so that a busy client's signature is not checked every time.
const REMEMBERED_MAX: usize = 1_024;
const ISSUER: &str = "posthaste";

/// The keys that tokens are signed with: the first mints, all verify, so that a key can be
/// replaced without a cut.
#[derive(Clone)]
pub struct TokenKeys(Arc<[hmac::Key]>);

/// Who is calling, after the token was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub organisation: OrganisationId,
    /// Set by an application token: the only application this caller may touch.
    pub application: Option<ApplicationId>,
    pub feature_flags: Vec<FeatureFlag>,
    pub read_only: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    iat: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exp: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nbf: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    iss: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sub: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    org: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    feature_flags: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    read_only: bool,
}

impl TokenKeys {
    /// `None` without a key, or when one is empty: anybody could sign with that.
    pub fn new(secrets: &[&[u8]]) -> Option<Self> {
        if secrets.is_empty() || secrets.iter().any(|secret| secret.is_empty()) {
            return None;
        }
        Some(Self(secrets.iter().map(|key| hmac::Key::new(hmac::HMAC_SHA256, key)).collect()))
    }
}

impl fmt::Debug for TokenKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenKeys({})", self.0.len())
    }
}

/// A token for everything within `organisation`.
pub fn mint_organisation(
    keys: &TokenKeys,
    organisation: &OrganisationId,
    now: Timestamp,
    lives: Duration,
) -> String {
    let claims = Claims { sub: Some(organisation.to_string()), ..claims(now, lives) };
    mint(keys, &claims)
}

/// What an application token is for.
#[derive(Clone, Debug)]
pub struct ApplicationGrant<'a> {
    pub organisation: &'a OrganisationId,
    pub application: ApplicationId,
    pub feature_flags: &'a [FeatureFlag],
    /// May look but not change anything.
    pub read_only: bool,
}

/// A token for one application.
pub fn mint_application(
    keys: &TokenKeys,
    grant: &ApplicationGrant<'_>,
    now: Timestamp,
    lives: Duration,
) -> String {
    let claims = Claims {
        sub: Some(grant.application.to_string()),
        org: Some(grant.organisation.to_string()),
        feature_flags: grant.feature_flags.iter().map(ToString::to_string).collect(),
        read_only: grant.read_only,
        ..claims(now, lives)
    };
    mint(keys, &claims)
}

#[expect(clippy::cast_precision_loss, reason = "seconds of this era fit a float exactly")]
fn claims(now: Timestamp, lives: Duration) -> Claims {
    Claims {
        iat: Some(now.as_secs() as f64),
        exp: Some(now.after(lives).as_secs() as f64),
        nbf: Some(now.as_secs() as f64),
        iss: Some(ISSUER.to_owned()),
        sub: None,
        org: None,
        feature_flags: Vec::new(),
        read_only: false,
    }
}

fn mint(keys: &TokenKeys, claims: &Claims) -> String {
    let mut token = URL_SAFE_NO_PAD.encode(br#"{"alg":"HS256","typ":"JWT"}"#);
    token.push('.');
    // Claims are numbers and texts, which always have a JSON form.
    URL_SAFE_NO_PAD.encode_string(serde_json::to_vec(claims).unwrap_or_default(), &mut token);
    let signature = hmac::sign(&keys.0[0], token.as_bytes());
    token.push('.');
    URL_SAFE_NO_PAD.encode_string(signature, &mut token);
    token
}

/// A verified token and the times between which it holds.
#[derive(Clone, Debug)]
struct Verified {
    caller: Arc<Caller>,
    not_before: Timestamp,
    expires_at: Timestamp,
}

/// Verifies tokens, and remembers those that were good.
#[derive(Debug)]
pub(crate) struct Verifier {
    keys: TokenKeys,
    remembered: RwLock<Remembered>,
}

#[derive(Default)]
struct Remembered(HashMap<Box<str>, Verified>);

impl fmt::Debug for Remembered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Remembered({})", self.0.len())
    }
}

impl Verifier {
    pub fn new(keys: TokenKeys) -> Self {
        Self { keys, remembered: RwLock::default() }
    }

    /// Who is calling, by the value of the `Authorization` header.
    pub fn caller(&self, authorization: Option<&str>, now: Timestamp) -> Result<Arc<Caller>> {
        let token = authorization
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim())
            .ok_or(Refusal::unauthenticated("Invalid token"))?;
        let known = {
            let remembered = self.remembered.read().unwrap_or_else(PoisonError::into_inner);
            remembered.0.get(token).cloned()
        };
        if let Some(verified) = known {
            return verified.at(now);
        }
        let verified = verify(&self.keys, token)?;
        let caller = verified.at(now)?;
        let mut remembered = self.remembered.write().unwrap_or_else(PoisonError::into_inner);
        if remembered.0.len() >= REMEMBERED_MAX {
            remembered.0.clear();
        }
        remembered.0.insert(token.into(), verified);
        Ok(caller)
    }
}

impl Verified {
    fn at(&self, now: Timestamp) -> Result<Arc<Caller>> {
        let early = now.after(CLOCK_TOLERANCE) < self.not_before;
        if early || now.before(CLOCK_TOLERANCE) >= self.expires_at {
            return Err(Refusal::unauthenticated("Invalid token"));
        }
        Ok(self.caller.clone())
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    /// Extensions that we would have to understand; we understand none (RFC 7515 section 4.1.11).
    crit: Option<serde::de::IgnoredAny>,
}

fn verify(keys: &TokenKeys, token: &str) -> Result<Verified> {
    let invalid = || Refusal::unauthenticated("Invalid token");
    if token.len() > TOKEN_BYTES_MAX {
        return Err(invalid());
    }
    let (signed, signature) = token.rsplit_once('.').ok_or_else(invalid)?;
    let (header, claims) = signed.split_once('.').ok_or_else(invalid)?;
    let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid());
    let header: Header = serde_json::from_slice(&decode(header)?).map_err(|_| invalid())?;
    if header.alg != "HS256" || header.crit.is_some() {
        return Err(invalid());
    }
    let signature = decode(signature)?;
    // `hmac::verify` compares in constant time.
    if !keys.0.iter().any(|key| hmac::verify(key, signed.as_bytes(), &signature).is_ok()) {
        return Err(invalid());
    }
    let claims: Claims = serde_json::from_slice(&decode(claims)?).map_err(|_| invalid())?;
    let not_before = claims.nbf.map_or(Timestamp::MIN, seconds);
    let expires_at = claims.exp.map_or(Timestamp::MAX, seconds);
    Ok(Verified { caller: Arc::new(caller(claims)?), not_before, expires_at })
}

fn caller(claims: Claims) -> Result<Caller> {
    let bad = |what: &str| Refusal::bad_request("bad_token", format!("`{what}` is malformed"));
    let sub = claims.sub.ok_or(Refusal::unauthenticated("the token has no `sub`"))?;
    let (organisation, application) = match claims.org {
        None => (OrganisationId::new(&sub).ok_or_else(|| bad("sub"))?, None),
        Some(org) => (
            OrganisationId::new(&org).ok_or_else(|| bad("org"))?,
            Some(sub.parse().map_err(|_| bad("sub"))?),
        ),
    };
    let flags = claims.feature_flags.iter().map(|flag| FeatureFlag::new(flag));
    let feature_flags = flags.collect::<Result<_, _>>().map_err(|_| bad("feature_flags"))?;
    Ok(Caller { organisation, application, feature_flags, read_only: claims.read_only })
}

/// Seconds since the epoch, as far as they can be told; a float, because RFC 7519 allows fractions.
fn seconds(numeric_date: f64) -> Timestamp {
    #[expect(clippy::cast_possible_truncation, reason = "saturates, which is what is meant")]
    Timestamp::from_micros((numeric_date * 1e6) as i64)
}

#[cfg(test)]
mod tests;
