//! Our own trouble. What an endpoint or a client does wrong is never an error of this kind.

use std::fmt;

/// What a caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The thing that was named does not exist (any more).
    NotFound,
    /// A unique name is taken.
    Conflict,
    /// Somebody else changed the row since it was read: read again.
    Stale,
    /// A bound would be exceeded.
    Limit,
    /// The store cannot be reached or written now; it may work later.
    Unavailable,
    /// The data folder or database cannot be used as it is; a person must act.
    Unusable,
    /// A defect: of the data or of this program.
    Internal,
}

/// **Invariant:** the text holds no payload, secret or personal field.
#[derive(Debug, thiserror::Error)]
pub struct Error {
    kind: Kind,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub fn new(kind: Kind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), source: None }
    }

    #[must_use]
    pub fn because(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}
