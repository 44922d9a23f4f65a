//! Hands out: which worker gets which due delivery.
//!
//! The store is the only truth. What this crate adds is speed: a delivery that this process has
//! room for is committed under its own lease and handed over in memory (`Offer`), and a worker that
//! sleeps hears at once that something is due (`nudge`). Losing either loses nothing: leases run
//! out and due times come.

mod offer;

pub use offer::{FastPath, Job, Offer, Room};

use posthaste_core::routing::Routes;
use posthaste_store::outbox::{Claim, Claimed};
use posthaste_store::{Result, Store};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;

/// How long a publisher is held back at the most.
const PACE_MAX: Duration = Duration::from_millis(100);

/// The queue engine that needs no broker: due times and leases in the store.
pub struct Queue {
    store: Arc<dyn Store>,
    nudge: Notify,
    /// Set when this process has a worker.
    fast_path: OnceLock<Arc<dyn FastPath>>,
}

impl Queue {
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, nudge: Notify::new(), fast_path: OnceLock::new() }
    }

    /// Lets accepted deliveries go straight to this process's worker. Only the first call counts:
    /// a process has one worker.
    pub fn attach(&self, fast_path: Arc<dyn FastPath>) {
        let _ = self.fast_path.set(fast_path);
    }

    /// Holds a publisher back while this process's worker has as much in memory for the endpoints
    /// as it may: what is accepted beyond that takes the longer road through the store, which
    /// leaves even less time for sending. Waits a moment at the most, so a backlog can still grow.
    pub async fn pace(&self, routes: &Routes) {
        if let Some(fast_path) = self.fast_path.get() {
            let relieved = fast_path.relieved(&routes.endpoints);
            let _ = tokio::time::timeout(PACE_MAX, relieved).await;
        }
    }

    /// Tells the worker of this process, and those of others, that something may be due.
    pub fn nudge(&self) {
        self.nudge.notify_one();
        self.store.nudge();
    }

    /// Returns when somebody nudged since the last call, here or, where the store can tell,
    /// elsewhere.
    pub async fn nudged(&self) {
        tokio::select! {
            () = self.nudge.notified() => {}
            () = self.store.nudged() => {}
        }
    }

    /// # Errors
    /// Those of the store.
    pub async fn claim(&self, claim: Claim) -> Result<Claimed> {
        self.store.claim(claim).await
    }
}
