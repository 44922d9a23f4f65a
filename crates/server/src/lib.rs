//! Listens: the REST API, compatible with that of Svix.
//!
//! `router` gives the routes (`metrics_router` those of a worker), `serve` the listener around
//! them. A request is authenticated, read within its bounds, handed to one function of `api`, and
//! answered in JSON; that road is `call`. What operations there are is one list
//! (`api::operations`), from which the routes and the OpenAPI document are made.
//!
//! **Invariant:** this crate does not send webhooks and does not know the engine. It writes to the
//! store, and nudges the queue.
//!
//! **Invariant:** no answer with an error status has an empty body, whatever the path or method.
//! What is no HTTP never gets here: hyper answers it with a bare 400, 414 or 431 and closes.

mod api;
pub mod auth;
mod body;
mod call;
mod error;
mod fallback;
mod idempotency;
mod page;
mod places;
mod query;
mod serve;
mod stall;
mod standing;
mod traffic;
mod wire;

pub use serve::{ServeLimits, serve};

use crate::auth::{Caller, TokenKeys, Verifier};
use crate::call::{Operation, Route};
use crate::standing::Standing;
use crate::traffic::Traffic;
use axum::Router;
use axum::extract::Request;
use axum::routing::{MethodFilter, on};
use posthaste_core::event::OrganisationId;
use posthaste_core::limits::PAYLOAD_KEPT_FOR_DAYS;
use posthaste_core::time::{Clock, Dice};
use posthaste_queue::Queue;
use posthaste_store::Store;
use std::fmt;
use std::sync::Arc;

/// Everything the API needs from outside.
#[derive(Clone)]
pub struct Api {
    pub store: Arc<dyn Store>,
    pub queue: Arc<Queue>,
    pub clock: Arc<dyn Clock>,
    pub dice: Arc<dyn Dice>,
    /// What the rest of the process has to tell at `GET /metrics`, in the Prometheus text format.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
    pub settings: ApiSettings,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The settings of the API.
#[derive(Clone, Debug)]
pub struct ApiSettings {
    pub tokens: TokenKeys,
    /// Refuses endpoints whose URL is not `https://`.
    pub https_only: bool,
    /// What an endpoint gets that brings no secret of its own.
    pub secret_kind: SecretKind,
    /// How long payloads are kept unless the message says otherwise, in days.
    pub payload_kept_for_days: u16,
    /// Where browsers reach this server, without a slash at the end; links begin with it.
    pub public_url: String,
    pub version: &'static str,
}

/// What the server makes for endpoints that bring no secret.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SecretKind {
    #[default]
    Hmac,
    Ed25519,
}

impl ApiSettings {
    pub fn new(tokens: TokenKeys, public_url: &str) -> Self {
        Self {
            tokens,
            https_only: false,
            secret_kind: SecretKind::Hmac,
            payload_kept_for_days: PAYLOAD_KEPT_FOR_DAYS,
            public_url: public_url.trim_end_matches('/').to_owned(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// What all requests share.
pub(crate) struct Shared {
    pub store: Arc<dyn Store>,
    pub queue: Arc<Queue>,
    pub clock: Arc<dyn Clock>,
    pub dice: Arc<dyn Dice>,
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
    pub settings: ApiSettings,
    pub verifier: Verifier,
    pub traffic: Traffic,
    pub standing: Standing,
    pub openapi: bytes::Bytes,
    /// The caller of what needs no token.
    pub nobody: Arc<Caller>,
}

/// The routes of the API.
pub fn router(api: Api) -> Router {
    routes(api, api::operations())
}

/// Metrics and health alone, for a process without the API. They need no token.
pub fn metrics_router(api: Api) -> Router {
    routes(api, api::of_any_process())
}

fn routes(api: Api, operations: Vec<Operation>) -> Router {
    let operations: Vec<_> = operations.into_iter().map(Arc::new).collect();
    let mut traffic = Traffic::default();
    let counters: Vec<_> = operations
        .iter()
        .map(|operation| traffic.counter(operation.path, operation.method.as_str()))
        .collect();
    let shared = Arc::new(Shared {
        verifier: Verifier::new(api.settings.tokens.clone()),
        openapi: api::openapi::document(&operations, api.settings.version),
        nobody: Arc::new(nobody()),
        traffic,
        standing: Standing::new(api.clock.clone()),
        store: api.store,
        queue: api.queue,
        clock: api.clock,
        dice: api.dice,
        metrics: api.metrics,
        settings: api.settings,
    });
    let mut router = Router::new();
    for (operation, counter) in operations.into_iter().zip(counters) {
        let Ok(filter) = MethodFilter::try_from(operation.method.clone()) else { continue };
        let path = operation.path;
        let route = Arc::new(Route { shared: shared.clone(), operation, counter });
        let serve = on(filter, move |request: Request| {
            let route = route.clone();
            async move { route.serve(request).await }
        });
        // Clients that end a path with a slash are common; they get no slower road.
        router = router.route(path, serve.clone()).route(&format!("{path}/"), serve);
    }
    fallback::around(router)
}

fn nobody() -> Caller {
    // The text is a constant that is well-formed; a test would show if it were not.
    let organisation = OrganisationId::new("org_nobody");
    Caller {
        organisation: organisation.unwrap_or_else(|| unreachable!("a well-formed constant")),
        application: None,
        feature_flags: Vec::new(),
        read_only: true,
    }
}
