//! Standard Webhooks signatures: `v1` (HMAC-SHA256) and `v1a` (Ed25519), several secrets at once.
//!
//! What is signed is `{id}.{timestamp}.{payload}`, with the key that the secret's base64 text
//! stands for, never the text itself:
//! <https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>.
//! A delivery is signed when it is sent, with the secrets that are valid then.

use crate::id::MessageId;
use crate::limits::{OLD_SECRETS_MAX, SECRET_KEY_BYTES_MAX, SECRET_KEY_BYTES_MIN};
use crate::time::Timestamp;
use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, STANDARD};
use base64::engine::{DecodePaddingMode, GeneralPurposeConfig};
use ring::hmac;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

const HMAC_PREFIX: &str = "whsec_";
const ED25519_PREFIX: &str = "whsk_";
pub(crate) const ED25519_PUBLIC_PREFIX: &str = "whpk_";
const ED25519_SEED_BYTES: usize = 32;
const ED25519_BYTES: usize = 64;
pub(crate) const HMAC_SCHEME: &str = "v1,";
pub(crate) const ED25519_SCHEME: &str = "v1a,";
/// Length of an entry of the signature header with its blank: 88 digits and the scheme.
const ENTRY_BYTES_MAX: usize = 1 + ED25519_SCHEME.len() + 88;

/// One signing secret, ready to sign; `Debug` shows its kind only. Cloning is cheap.
#[derive(Clone)]
pub struct Secret(Arc<Kind>);

enum Kind {
    Hmac {
        bytes: Vec<u8>,
        key: hmac::Key,
    },
    /// Seed and public key, 64 bytes.
    Ed25519 {
        bytes: Vec<u8>,
        pair: Ed25519KeyPair,
    },
}

/// The half of a secret that checks signatures.
pub(crate) enum Verifying<'a> {
    Hmac(&'a hmac::Key),
    /// The public key's bytes.
    Ed25519(&'a [u8]),
}

/// A secret that was rotated out and signs until it expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldSecret {
    pub secret: Secret,
    pub expires_at: Timestamp,
}

/// The current secret and the old ones that still sign beside it, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRing {
    pub current: Secret,
    pub old: Vec<OldSecret>,
}

/// Why a text is no secret; never holds any of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SecretError(pub String);

/// Too many old secrets are valid beside the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at most {OLD_SECRETS_MAX} old secrets may be valid at once")]
pub struct RotateError {
    /// When the next of them expires, so that another rotation is possible.
    pub next_expiry_at: Timestamp,
}

impl Secret {
    /// Reads `whsec_` and the base64 of 24 to 75 bytes, or `whsk_` and the base64 of an Ed25519
    /// seed and its public key. Base64 may be in the standard or the URL-safe alphabet, with or
    /// without padding; `whsec_` may be left out; white space around it is ignored. Every
    /// spelling gives the same key. A text that is not base64 is refused, not taken for a key.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(refused("the secret must not be empty"));
        }
        for scheme in [HMAC_SCHEME, ED25519_SCHEME] {
            if text.starts_with(scheme) {
                let why = format!("a secret must not carry `{scheme}`: that begins a signature");
                return Err(SecretError(why));
            }
        }
        if text.starts_with(ED25519_PUBLIC_PREFIX) {
            return Err(refused("`whpk_` begins a public key, which cannot sign"));
        }
        match text.strip_prefix(ED25519_PREFIX) {
            Some(digits) => Self::ed25519(decode(digits)?),
            None => Self::hmac(decode(text.strip_prefix(HMAC_PREFIX).unwrap_or(text))?),
        }
    }

    /// A new HMAC secret of random bytes.
    pub fn generate_hmac(random: [u8; 32]) -> Self {
        Self::with_hmac(random.to_vec())
    }

    /// A new Ed25519 secret with a random seed. Fails only where the crypto library does.
    pub fn generate_ed25519(seed: [u8; ED25519_SEED_BYTES]) -> Result<Self, SecretError> {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed)
            .map_err(|_| refused("no Ed25519 key can be made of this seed"))?;
        Self::ed25519([&seed, pair.public_key().as_ref()].concat())
    }

    /// The text that `parse` reads; for the store and the owner only.
    pub fn expose(&self) -> String {
        match &*self.0 {
            Kind::Hmac { bytes, .. } => encode(HMAC_PREFIX, bytes),
            Kind::Ed25519 { bytes, .. } => encode(ED25519_PREFIX, bytes),
        }
    }

    /// What the receiver needs: the secret itself, or the public key `whpk_...`.
    pub fn verification_key(&self) -> String {
        match &*self.0 {
            Kind::Hmac { .. } => self.expose(),
            Kind::Ed25519 { pair, .. } => encode(ED25519_PUBLIC_PREFIX, pair.public_key().as_ref()),
        }
    }

    pub fn is_ed25519(&self) -> bool {
        matches!(&*self.0, Kind::Ed25519 { .. })
    }

    /// What checks this secret's signatures.
    pub(crate) fn verifying(&self) -> Verifying<'_> {
        match &*self.0 {
            Kind::Hmac { key, .. } => Verifying::Hmac(key),
            Kind::Ed25519 { pair, .. } => Verifying::Ed25519(pair.public_key().as_ref()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match &*self.0 {
            Kind::Hmac { bytes, .. } | Kind::Ed25519 { bytes, .. } => bytes,
        }
    }

    fn hmac(bytes: Vec<u8>) -> Result<Self, SecretError> {
        if !(SECRET_KEY_BYTES_MIN..=SECRET_KEY_BYTES_MAX).contains(&bytes.len()) {
            return Err(SecretError(format!(
                "the secret must stand for {SECRET_KEY_BYTES_MIN} to {SECRET_KEY_BYTES_MAX} bytes, \
                 not {}",
                bytes.len()
            )));
        }
        Ok(Self::with_hmac(bytes))
    }

    fn with_hmac(bytes: Vec<u8>) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
        Self(Arc::new(Kind::Hmac { bytes, key }))
    }

    fn ed25519(bytes: Vec<u8>) -> Result<Self, SecretError> {
        if bytes.len() != ED25519_BYTES {
            return Err(refused("`whsk_` must be followed by 64 bytes: seed and public key"));
        }
        let (seed, public) = bytes.split_at(ED25519_SEED_BYTES);
        let pair = Ed25519KeyPair::from_seed_and_public_key(seed, public)
            .map_err(|_| refused("the public key in the secret does not belong to its seed"))?;
        Ok(Self(Arc::new(Kind::Ed25519 { bytes, pair })))
    }

    /// Appends this secret's entry of the signature header.
    fn sign_into(&self, header: &mut String, head: &str, payload: &[u8]) {
        if !header.is_empty() {
            header.push(' ');
        }
        match &*self.0 {
            Kind::Hmac { key, .. } => {
                let mut context = hmac::Context::with_key(key);
                context.update(head.as_bytes());
                context.update(payload);
                header.push_str(HMAC_SCHEME);
                STANDARD.encode_string(context.sign(), header);
            }
            Kind::Ed25519 { pair, .. } => {
                // Ed25519 reads its message twice, so it needs it in one piece.
                let content = [head.as_bytes(), payload].concat();
                header.push_str(ED25519_SCHEME);
                STANDARD.encode_string(pair.sign(&content), header);
            }
        }
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.is_ed25519() == other.is_ed25519() && same(self.bytes(), other.bytes())
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &*self.0 {
            Kind::Hmac { .. } => "Secret(hmac)",
            Kind::Ed25519 { .. } => "Secret(ed25519)",
        })
    }
}

impl SecretRing {
    pub fn new(current: Secret) -> Self {
        Self { current, old: Vec::new() }
    }

    /// The value of the signature header for an attempt at `now`: the current secret first.
    pub fn sign(&self, id: MessageId, now: Timestamp, payload: &[u8]) -> String {
        self.sign_head(&format!("{id}.{}.", now.as_secs()), now, payload)
    }

    /// As `sign`, for an id in another form. `timestamp_secs` also tells which secrets are valid.
    pub fn sign_content(&self, id: &str, timestamp_secs: i64, payload: &[u8]) -> String {
        let now = Timestamp::from_secs(timestamp_secs);
        self.sign_head(&format!("{id}.{timestamp_secs}."), now, payload)
    }

    /// The ring with a new current secret. The one before signs beside it for `overlap`; with
    /// none, it ends at once. Expired secrets are dropped. The ring stays as it was on an error.
    pub fn rotate(
        &self,
        new: Secret,
        now: Timestamp,
        overlap: Duration,
    ) -> Result<Self, RotateError> {
        let mut old: Vec<_> =
            self.valid_old(now).filter(|old| old.secret != new).cloned().collect();
        if !overlap.is_zero() && self.current != new {
            if old.len() >= OLD_SECRETS_MAX {
                let next_expiry_at = old.iter().map(|old| old.expires_at).min().unwrap_or(now);
                return Err(RotateError { next_expiry_at });
            }
            let secret = self.current.clone();
            old.retain(|old| old.secret != secret);
            old.insert(0, OldSecret { secret, expires_at: now.after(overlap) });
        }
        Ok(Self { current: new, old })
    }

    fn valid_old(&self, now: Timestamp) -> impl Iterator<Item = &OldSecret> {
        self.old.iter().filter(move |old| now < old.expires_at)
    }

    fn sign_head(&self, head: &str, now: Timestamp, payload: &[u8]) -> String {
        let mut header = String::with_capacity(ENTRY_BYTES_MAX * (1 + self.old.len()));
        self.current.sign_into(&mut header, head, payload);
        for old in self.valid_old(now) {
            old.secret.sign_into(&mut header, head, payload);
        }
        header
    }
}

/// Compares in a time that depends on the lengths only.
pub(crate) fn same(one: &[u8], other: &[u8]) -> bool {
    let differ = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && std::hint::black_box(differ) == 0
}

/// Decodes base64 in either alphabet, with or without padding.
pub(crate) fn decode(digits: &str) -> Result<Vec<u8>, SecretError> {
    const ANY_PADDING: GeneralPurposeConfig =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    const STANDARD_ANY: GeneralPurpose =
        GeneralPurpose::new(&base64::alphabet::STANDARD, ANY_PADDING);
    const URL_SAFE_ANY: GeneralPurpose =
        GeneralPurpose::new(&base64::alphabet::URL_SAFE, ANY_PADDING);
    let engine = if digits.contains(['-', '_']) { URL_SAFE_ANY } else { STANDARD_ANY };
    engine.decode(digits).map_err(|_| {
        refused(
            "the secret must be base64, usually with `whsec_` in front; for a key that is \
                 plain text, give the base64 of that text",
        )
    })
}

fn encode(prefix: &str, bytes: &[u8]) -> String {
    let mut text = String::from(prefix);
    STANDARD.encode_string(bytes, &mut text);
    text
}

fn refused(why: &str) -> SecretError {
    SecretError(why.to_owned())
}

#[cfg(test)]
mod tests;
