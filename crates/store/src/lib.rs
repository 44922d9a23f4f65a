//! Remembers: the only place with SQL, and the only truth. Brokers, caches and lanes are hints.
//!
//! Four groups, each a trait, a file per back-end, an SQL file per back-end and a group of the
//! conformance suite, all of one name: `outbox` (accept, claim, record), `catalog` (applications,
//! endpoints, event types, idempotency keys), `history` (what was and how it stands) and `upkeep`
//! (workers, recovery, sweeps, tasks, retention).
//!
//! **Invariant:** nothing above this crate may ask which back-end it runs on.
//!
//! **Invariant:** time comes in as an argument; no query calls a clock.

mod availability;
mod cache;
pub mod catalog;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod diagnosis;
pub mod error;
pub mod history;
mod lanes;
mod migrate;
mod monotonic;
pub mod outbox;
mod page;
mod pick;
pub mod postgres;
mod queries;
mod rows;
pub mod sqlite;
mod standing;
pub mod transfer;
pub mod upkeep;

pub use catalog::Catalog;
pub use error::{Error, Kind, Reason};
pub use history::History;
pub use outbox::Outbox;
pub use postgres::{PostgresOptions, PostgresStore};
pub use sqlite::{SqliteOptions, SqliteStore};
pub use upkeep::Upkeep;

/// Everything a back-end gives.
pub trait Store: Outbox + Catalog + History + Upkeep {}

impl<T: Outbox + Catalog + History + Upkeep> Store for T {}

pub type Result<T, E = Error> = std::result::Result<T, E>;
