//! Whether this server can do its work, for load balancers; needs no token.

use crate::call::{Access, Answer, Call, Operation};
use crate::error::Result;
use crate::wire::misc::{HealthOut, HealthPart};
use http::{Method, StatusCode};

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
    let checked = call.shared.store.check().await;
    if let Err(error) = &checked {
        tracing::warn!(error = %error, "the store is not well");
    }
    let (status, word) = match checked {
        Ok(()) => (StatusCode::OK, "ok"),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "error"),
    };
    let part = HealthPart { status: word };
    Answer::json(status, &HealthOut { database: part, queue: part, cache: part })
}

async fn ping(_: Call) -> Result<Answer> {
    Ok(Answer::nothing())
}
