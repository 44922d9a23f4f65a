//! Ids: 16 bytes, ordered by time (UUID version 7, RFC 9562 section 5.7), written as a prefix and
//! 22 base62 digits.
//!
//! The digits `0-9A-Za-z` stand in ASCII order and the width is fixed, so the order of texts, of
//! bytes and of creation times is the same.

use crate::time::Timestamp;
use std::fmt;

const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const WIDTH: usize = 22;
/// Fits 64 bits.
const TEN_DIGITS: u128 = 62_u128.pow(10);

/// Why a text is not an id of the kind that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("the id must start with `{0}`")]
    Prefix(&'static str),
    #[error("an id is its prefix and 22 letters or digits")]
    Malformed,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 16]);

        impl $name {
            pub const PREFIX: &'static str = $prefix;

            /// A new id for the given millisecond; `random` makes it unique within it.
            pub fn new(now: Timestamp, random: [u8; 10]) -> Self {
                Self(uuid_v7(now, random))
            }

            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }

            pub const fn as_bytes(&self) -> &[u8; 16] {
                &self.0
            }

            /// The smallest id of the millisecond of `at`: a bound for queries by time.
            pub fn lower_bound(at: Timestamp) -> Self {
                Self(lower_bound(at))
            }

            /// When the id was made, to the millisecond.
            pub fn timestamp(&self) -> Timestamp {
                timestamp(&self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(Self::PREFIX)?;
                write_base62(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                let digits = text.strip_prefix(Self::PREFIX).ok_or(IdError::Prefix(Self::PREFIX))?;
                parse_base62(digits).map(Self).ok_or(IdError::Malformed)
            }
        }
    };
}

id!(
    /// Owner of endpoints and messages.
    ApplicationId, "app_"
);
id!(
    /// Where messages of an application go.
    EndpointId, "ep_"
);
id!(
    /// An accepted event; sent as `webhook-id` on every attempt.
    MessageId, "msg_"
);
id!(
    /// One HTTP exchange for a delivery.
    AttemptId, "atmpt_"
);
id!(
    /// Long work that the store remembers, such as a recovery.
    TaskId, "qtask_"
);
id!(
    /// One running process that claims deliveries.
    WorkerId, "wrk_"
);
id!(
    /// Something an operator should know, raised once.
    NoticeId, "ntc_"
);

fn uuid_v7(now: Timestamp, random: [u8; 10]) -> [u8; 16] {
    let mut bytes = lower_bound(now);
    bytes[6..].copy_from_slice(&random);
    bytes[6] = 0x70 | (random[0] & 0x0F);
    bytes[8] = 0x80 | (random[2] & 0x3F);
    bytes
}

fn lower_bound(at: Timestamp) -> [u8; 16] {
    let millis = u64::try_from(at.as_millis()).unwrap_or(0).min((1 << 48) - 1);
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
    bytes
}

fn timestamp(bytes: &[u8; 16]) -> Timestamp {
    let millis = bytes[..6].iter().fold(0_i64, |sum, byte| (sum << 8) | i64::from(*byte));
    Timestamp::from_millis(millis)
}

fn write_base62(bytes: &[u8; 16], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut rest = u128::from_be_bytes(*bytes);
    let mut text = [b'0'; WIDTH];
    // Ten digits at a time: divisions of 128 bits are slow.
    for digits in text.rchunks_mut(10) {
        let mut ten = (rest % TEN_DIGITS) as u64;
        rest /= TEN_DIGITS;
        for digit in digits.iter_mut().rev() {
            *digit = DIGITS[(ten % 62) as usize];
            ten /= 62;
        }
    }
    f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
}

fn parse_base62(text: &str) -> Option<[u8; 16]> {
    if text.len() != WIDTH {
        return None;
    }
    text.bytes()
        .try_fold(0_u128, |sum, byte| {
            let digit = match byte {
                b'0'..=b'9' => byte - b'0',
                b'A'..=b'Z' => byte - b'A' + 10,
                b'a'..=b'z' => byte - b'a' + 36,
                _ => return None,
            };
            sum.checked_mul(62)?.checked_add(u128::from(digit))
        })
        .map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn text_and_back(bytes: [u8; 16]) {
            let id = MessageId::from_bytes(bytes);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
        }

        #[test]
        fn text_order_is_byte_order(one: [u8; 16], other: [u8; 16]) {
            let (one, other) = (MessageId::from_bytes(one), MessageId::from_bytes(other));
            prop_assert_eq!(one.cmp(&other), one.to_string().cmp(&other.to_string()));
        }

        #[test]
        fn hostile_text_is_refused_without_panic(text in ".{0,40}") {
            let _ = text.parse::<EndpointId>();
        }
    }

    #[test]
    fn time_comes_back_and_bounds_hold() {
        let now = Timestamp::from_millis(1_700_000_000_123);
        let id = MessageId::new(now, [0xFF; 10]);
        assert_eq!(id.timestamp(), now);
        assert!(MessageId::lower_bound(now) <= id);
        assert!(id < MessageId::lower_bound(Timestamp::from_millis(1_700_000_000_124)));
        assert_eq!(id.as_bytes()[6] >> 4, 7);
    }

    #[test]
    fn wrong_prefix_and_overflow() {
        assert_eq!("ep_0".parse::<MessageId>(), Err(IdError::Prefix("msg_")));
        assert_eq!("msg_zzzzzzzzzzzzzzzzzzzzzz".parse::<MessageId>(), Err(IdError::Malformed));
    }
}
