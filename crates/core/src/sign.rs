//! Standard Webhooks signatures: `v1` (HMAC-SHA256) and `v1a` (Ed25519), several secrets at once.

use crate::id::MessageId;
use crate::time::Timestamp;
use std::fmt;

/// One signing secret; `Debug` shows its kind only.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    Hmac(Vec<u8>),
    /// Seed and public key, 64 bytes.
    Ed25519(Vec<u8>),
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

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SecretError(pub String);

impl Secret {
    /// Reads `whsec_...` or `whsk_...`.
    pub fn parse(_text: &str) -> Result<Self, SecretError> {
        unimplemented!()
    }

    /// The text that `parse` reads; for the store and the owner only.
    pub fn expose(&self) -> String {
        unimplemented!()
    }

    /// What the receiver needs: the secret itself, or the public key `whpk_...`.
    pub fn verification_key(&self) -> String {
        unimplemented!()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hmac(_) => "Secret(hmac)",
            Self::Ed25519(_) => "Secret(ed25519)",
        })
    }
}

impl SecretRing {
    /// The value of the signature header for an attempt at `now`: the current secret first.
    pub fn sign(&self, _id: MessageId, _now: Timestamp, _payload: &[u8]) -> String {
        unimplemented!()
    }
}
