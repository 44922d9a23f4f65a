//! Names that users choose: event types, channels, uids. A name cannot exist in a bad form.

use crate::limits::NAME_BYTES_MAX;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Why a text cannot be a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("must have 1 to {NAME_BYTES_MAX} characters")]
    Length,
    #[error("may only hold letters, digits, `-`, `_` and `.`")]
    Character,
    #[error("must not be `.` or `..`, which mean another place in a path")]
    Dots,
    #[error("must not start with `{0}`, which is reserved for ids")]
    ReservedPrefix(&'static str),
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident $(, not $prefix:expr)?) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn new(text: &str) -> Result<Self, NameError> {
                check(text)?;
                $(if text.starts_with($prefix) {
                    return Err(NameError::ReservedPrefix($prefix));
                })?
                Ok(Self(text.into()))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                Self::new(&text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.as_str().to_owned()
            }
        }
    };
}

name!(
    /// What kind of event a message is, such as `invoice.paid`.
    EventTypeName
);
name!(
    /// A second dimension of routing beside the event type.
    Channel
);
name!(
    /// An application's name in its owner's own system.
    ApplicationUid, not crate::id::ApplicationId::PREFIX
);
name!(
    /// An endpoint's name in its owner's own system.
    EndpointUid, not crate::id::EndpointId::PREFIX
);
name!(
    /// A message's name in its publisher's own system (`eventId`).
    EventId, not crate::id::MessageId::PREFIX
);
name!(
    /// Shows an event type only to those who have the flag.
    FeatureFlag
);

/// Whose applications these are: any text `org_...`, taken from the token.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OrganisationId(Arc<str>);

impl OrganisationId {
    pub const PREFIX: &'static str = "org_";

    /// `None` unless the text starts with `org_` and is otherwise a name.
    pub fn new(text: &str) -> Option<Self> {
        (text.starts_with(Self::PREFIX) && check(text).is_ok()).then(|| Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OrganisationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn check(text: &str) -> Result<(), NameError> {
    if text.is_empty() || text.len() > NAME_BYTES_MAX {
        return Err(NameError::Length);
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !text.bytes().all(allowed) {
        return Err(NameError::Character);
    }
    // Clients put names into paths, and most resolve these before they send: to delete an endpoint
    // named `..` would be to delete its application.
    if matches!(text, "." | "..") { Err(NameError::Dots) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert!(EventTypeName::new("invoice.paid-2_x").is_ok());
        assert_eq!(EventTypeName::new(""), Err(NameError::Length));
        assert_eq!(EventTypeName::new(&"a".repeat(257)), Err(NameError::Length));
        assert_eq!(Channel::new("a b"), Err(NameError::Character));
        assert_eq!(Channel::new("é"), Err(NameError::Character));
        assert_eq!(EndpointUid::new("."), Err(NameError::Dots));
        assert_eq!(EndpointUid::new(".."), Err(NameError::Dots));
        assert!(EndpointUid::new("...").is_ok());
        assert_eq!(EventId::new("msg_1"), Err(NameError::ReservedPrefix("msg_")));
        assert!(OrganisationId::new("org_svix_python_tests").is_some());
        assert!(OrganisationId::new("app_x").is_none());
    }
}
