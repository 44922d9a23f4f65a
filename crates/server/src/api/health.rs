//! Whether this server can do its work, for load balancers; needs no token.

use crate::call::{Access, Answer, Call, Operation};
use crate::error::Result;
use crate::wire::misc::{DatabaseHealth, HealthOut, HealthPart};
use http::{Method, StatusCode};
use posthaste_store::{Error, Reason, Store};

const HEALTH: &str = "/api/v1/health";
const PING: &str = "/api/v1/health/ping";

pub(super) fn operations() -> Vec<Operation> {
    let health = |method, id| {
        let about = "Whether the store can be read and written: 200, or 503.";
        Operation::new((method, HEALTH), id, Access::Anybody, about, |call| Box::pin(health(call)))
            .gives::<HealthOut>(200)
    };
    let ping = |method, id| {
        let about = "Whether the process answers.";
        Operation::new((method, PING), id, Access::Anybody, about, |call| Box::pin(ping(call)))
            .gives_nothing(204)
    };
    vec![
        health(Method::GET, "v1.health.get"),
        health(Method::HEAD, "v1.health.head"),
        ping(Method::GET, "v1.health.ping"),
        ping(Method::HEAD, "v1.health.ping-head"),
    ]
}

/// The store is also the queue and there is no cache beside it, so all three stand or fall as one.
async fn health(call: Call) -> Result<Answer> {
    let store = &*call.shared.store;
    let (status, word, reason, warnings) = match store.check().await {
        Ok(()) => {
            // Whether there is room for more is not found out by writing nothing.
            let full = store.trouble().filter(|reason| *reason == Reason::DiskFull);
            let warnings = call.shared.standing.warnings(store, call.now).await;
            match full {
                None => (StatusCode::OK, "ok", None, warnings),
                full => (StatusCode::SERVICE_UNAVAILABLE, "error", full, warnings),
            }
        }
        Err(error) => {
            if error.reason().is_none() {
                tracing::warn!(%error, "the store is not well");
            }
            let reason = why(&error, store);
            (StatusCode::SERVICE_UNAVAILABLE, "error", reason, Vec::new())
        }
    };
    let part = HealthPart { status: word };
    let database = DatabaseHealth {
        status: word,
        reason: reason.map(Reason::as_str),
        detail: reason.map(Reason::explanation),
        // Anybody may ask: who is at fault is told to who has a token.
        warnings: warnings.iter().map(|warning| warning.code).collect(),
    };
    Answer::json(status, &HealthOut { database, queue: part, cache: part })
}

/// Why the store cannot be used. Who waited in vain for a connection knows less than those who have
/// them.
pub(super) fn why(error: &Error, store: &dyn Store) -> Option<Reason> {
    match error.reason() {
        Some(Reason::Busy) => store.trouble().or(Some(Reason::Busy)),
        reason => reason,
    }
}

async fn ping(_: Call) -> Result<Answer> {
    Ok(Answer::nothing())
}
