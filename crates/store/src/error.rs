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

/// What keeps the store from serving, as far as it is known. Its texts are fixed: they hold nothing
/// of addresses, data or the server's own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Nobody answers at its address, or the connection broke.
    Unreachable,
    /// It is there and says nothing.
    Silent,
    Starting,
    /// The server takes no more connections.
    Connections,
    /// All connections of this process are in use.
    Busy,
    DiskFull,
    /// Something that is needed stays locked.
    Locked,
    /// A statement was cut off.
    Slow,
    /// It takes no writes.
    ReadOnly,
    /// It does not let us in, or not do what we must.
    Refused,
    /// Its system, such as its disk, fails.
    Failing,
}

impl Reason {
    /// For programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Silent => "silent",
            Self::Starting => "starting",
            Self::Connections => "connections",
            Self::Busy => "busy",
            Self::DiskFull => "disk_full",
            Self::Locked => "locked",
            Self::Slow => "slow",
            Self::ReadOnly => "read_only",
            Self::Refused => "refused",
            Self::Failing => "failing",
        }
    }

    /// For people: what it is, and the way out.
    pub fn explanation(self) -> &'static str {
        match self {
            Self::Unreachable => {
                "the database cannot be reached; see that it runs and that database_url leads there"
            }
            Self::Silent => {
                "the database does not answer; see whether its machine hangs or the network is cut"
            }
            Self::Starting => "the database is starting or stopping",
            Self::Connections => {
                "the database takes no more connections; raise max_connections there, or lower \
                 database_connections_max here"
            }
            Self::Busy => {
                "all connections of this process to the database are in use; if it is idle, raise \
                 database_connections_max"
            }
            Self::DiskFull => "the disk of the database is full; make room",
            Self::Locked => {
                "the database is there, but a table, row or file in it stays locked; end who holds \
                 it"
            }
            Self::Slow => "the database is there, but took too long and was cut off",
            Self::ReadOnly => {
                "the database takes no writes; it may be a standby, or have been made read-only"
            }
            Self::Refused => {
                "the database does not let this process in, or not do what it must; correct user, \
                 password and rights"
            }
            Self::Failing => "the database's system cannot read or write; see its log",
        }
    }

    /// While this lasts, nothing at all can work.
    pub(crate) fn is_total(self) -> bool {
        matches!(self, Self::Unreachable | Self::Silent | Self::Starting)
    }
}

/// **Invariant:** the text holds no payload, secret or personal field.
#[derive(Debug, thiserror::Error)]
pub struct Error {
    kind: Kind,
    reason: Option<Reason>,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub fn new(kind: Kind, context: impl Into<String>) -> Self {
        Self { kind, reason: None, context: context.into(), source: None }
    }

    /// Now, for this reason; it may work later.
    pub(crate) fn unavailable(reason: Reason, context: impl Into<String>) -> Self {
        Self::new(Kind::Unavailable, context).told(Some(reason))
    }

    #[must_use]
    pub(crate) fn told(mut self, reason: Option<Reason>) -> Self {
        self.reason = reason;
        self
    }

    /// The same once more, for another who waits for it.
    pub(crate) fn again(&self) -> Self {
        Self::new(self.kind, self.to_string()).told(self.reason)
    }

    #[must_use]
    pub fn because(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Why the store cannot be used, if it is that. The store itself logs that it cannot be used
    /// (`store.unavailable`), once for all who meet it.
    pub fn reason(&self) -> Option<Reason> {
        self.reason
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
