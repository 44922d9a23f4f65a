//! Carries one request to its receiver and brings back an outcome.
//!
//! **Invariant:** a receiver may do anything; it costs one outcome within the timeout and bounded
//! memory. [`Courier::send`] never fails.
//! **Invariant:** bytes go only to addresses that the guard let through, and redirects are never
//! followed.
//! **Invariant:** a request is sent again only where the receiver cannot have answered it: the
//! kept connection died without a byte, or HTTP/2 says that the request was not processed.
//!
//! It does not retry, judge or sign. One courier belongs to one runtime: its connections and its
//! tasks live there.

mod answer;
mod dial;
mod failure;
mod http1;
mod http2;
mod pool;
mod target;
mod tls;
mod trace;
mod wire;

pub use rustls::pki_types::CertificateDer;
pub use target::Target;

use crate::guard::Guard;
use answer::{Broken, Received, Sent};
use bytes::Bytes;
use dial::Dialer;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, HOST, HeaderMap, HeaderValue, USER_AGENT};
use http::{Method, Request, Version};
use http_body_util::Full;
use http1::Http1;
use http2::Http2;
use pool::{Bounds, Lent, Pool};
use posthaste_core::outcome::{Answer, Failure, FailureKind, Outcome, Phase, Response};
use std::sync::Arc;
use std::time::Duration;
use target::Origin;
use tokio::time::timeout;
use trace::Trace;

/// Cheap to clone.
#[derive(Clone)]
pub struct Courier {
    shared: Arc<Parts>,
}

struct Parts {
    user_agent: HeaderValue,
    dialer: Dialer,
    pool: Arc<Pool>,
}

/// How a courier names itself, whom it trusts, and which connections it keeps.
pub struct CourierSettings {
    /// Sent where an errand has no `User-Agent` of its own.
    pub user_agent: String,
    /// Idle HTTP/1.1 connections kept for one host ...
    pub idle_per_host_max: usize,
    /// ... and for all of them.
    pub idle_max: usize,
    /// How long an unused connection is kept.
    pub idle_for: Duration,
    /// Certificates trusted beside the machine's.
    pub extra_roots: Vec<CertificateDer<'static>>,
}

/// One request to carry.
///
/// `Host`, `Content-Length`, a missing `User-Agent` and the URL's own credentials are added; an
/// `Authorization` among the headers wins over those of the URL.
#[derive(Clone)]
pub struct Errand<'a> {
    pub target: &'a Target,
    pub method: Method,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// For the whole exchange: resolving, connecting, sending, and the answer with its body.
    pub timeout: Duration,
}

/// Why a courier cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CourierError {
    #[error("the user agent is not a header value")]
    UserAgent,
    #[error("a trusted certificate cannot be used: {0}")]
    Roots(#[from] rustls::Error),
}

/// Connections that one errand may use up. Each but the last was refused or dead before the
/// receiver worked on the request.
const CONNECTIONS_MAX: u32 = 5;
/// Of those, how many may be shared with other errands: a receiver that ends each HTTP/2
/// connection after one request would starve a late stream without end.
const SHARED_MAX: u32 = 2;

impl Default for CourierSettings {
    fn default() -> Self {
        Self {
            user_agent: concat!(
                "posthaste/",
                env!("CARGO_PKG_VERSION"),
                " (+https://github.com/posthaste/posthaste)"
            )
            .to_owned(),
            idle_per_host_max: 64,
            idle_max: 1_024,
            idle_for: Duration::from_secs(30),
            extra_roots: Vec::new(),
        }
    }
}

impl Courier {
    /// Reads the machine's trusted roots, so it blocks for some milliseconds.
    pub fn new(settings: CourierSettings, guard: Arc<Guard>) -> Result<Self, CourierError> {
        let user_agent = HeaderValue::try_from(settings.user_agent)
            .map_err(|_invalid| CourierError::UserAgent)?;
        let dialer = Dialer::new(guard, tls::Tls::new(&settings.extra_roots)?);
        let pool = Arc::new(Pool::new(Bounds {
            idle_per_host_max: settings.idle_per_host_max,
            idle_max: settings.idle_max,
            idle_for: settings.idle_for,
        }));
        Ok(Self { shared: Arc::new(Parts { user_agent, dialer, pool }) })
    }

    /// Whatever happens is an outcome, and it comes within the errand's timeout.
    pub async fn send(&self, errand: &Errand<'_>) -> Outcome {
        let mut trace = Trace::start();
        let exchange = self.shared.exchange(errand, &mut trace);
        let answer = match timeout(errand.timeout, exchange).await {
            Ok(Ok(response)) => Answer::Response(response),
            Ok(Err(failure)) => Answer::Failure(failure),
            Err(_elapsed) => Answer::Failure(trace.timed_out(errand.timeout)),
        };
        trace.finish(answer)
    }
}

/// What to do about an exchange that broke.
enum Remedy {
    None,
    SendAgain,
    SendAgainOverHttp1,
}

impl Parts {
    async fn exchange(&self, errand: &Errand<'_>, trace: &mut Trace) -> Result<Response, Failure> {
        let origin = &errand.target.origin;
        let mut used = 0;
        loop {
            let mut lent = if used < SHARED_MAX {
                self.borrow(origin, trace).await?
            } else {
                self.open(origin, trace).await?
            };
            used += 1;
            let request = self.request(errand, &lent).ok_or_else(|| {
                trace.failure(FailureKind::Protocol, "the URL cannot be put into a request")
            })?;
            let broken = match lent.exchange(request, trace).await {
                Ok(received) => return Ok(self.keep(errand.target, lent, received)),
                Err(broken) => broken,
            };
            match lent.remedy(&broken, trace.phase()) {
                Remedy::SendAgain if used < CONNECTIONS_MAX => self.pool.forget(origin, &lent),
                Remedy::SendAgainOverHttp1 if used < CONNECTIONS_MAX => {
                    self.pool.remember_http1_only(origin);
                }
                _ => return Err(failure::describe(&broken, lent.meter(), trace)),
            }
        }
    }

    /// A connection out of the pool, or a fresh one that others may use too.
    async fn borrow(&self, origin: &Arc<Origin>, trace: &mut Trace) -> Result<Lent, Failure> {
        if let Some(lent) = self.pool.take(origin) {
            return Ok(lent);
        }
        let turn = if origin.is_tls { self.pool.turn(origin) } else { None };
        let mut my_turn = None;
        if let Some(turn) = &turn {
            trace.enter(Phase::Connect);
            my_turn = Some(turn.lock().await);
            if let Some(lent) = self.pool.take(origin) {
                return Ok(lent);
            }
            if self.pool.turn(origin).is_none_or(|current| !Arc::ptr_eq(&current, turn)) {
                // The one before failed: from here on each for himself.
                my_turn = None;
            }
        }
        let opened = self.open(origin, trace).await;
        match &opened {
            Ok(Lent::Http2(connection)) => self.pool.share(origin, connection),
            Ok(Lent::Http1(_)) | Err(_) if turn.is_some() => self.pool.end_turns(origin),
            Ok(Lent::Http1(_)) | Err(_) => {}
        }
        drop(my_turn);
        opened
    }

    async fn open(&self, origin: &Arc<Origin>, trace: &mut Trace) -> Result<Lent, Failure> {
        let http1_only = origin.is_tls && self.pool.is_http1_only(origin);
        let dialed = self.dialer.dial(origin, http1_only, trace).await?;
        let opened = if dialed.is_http2 {
            Http2::open(dialed.wire, dialed.remote).await.map(Lent::Http2)
        } else {
            Http1::open(dialed.wire, dialed.remote).await.map(Lent::Http1)
        };
        opened.map_err(|_| trace.failure(FailureKind::Closed, "the connection broke at once"))
    }

    fn request(&self, errand: &Errand<'_>, lent: &Lent) -> Option<Sent> {
        let target = errand.target;
        let locations = target.locations.as_ref()?;
        let mut request = Request::new(Full::new(errand.body.clone()));
        *request.method_mut() = errand.method.clone();
        let mut headers = errand.headers.clone();
        match lent {
            Lent::Http1(_) => {
                *request.uri_mut() = locations.relative.clone();
                headers.insert(HOST, target.authority.clone());
            }
            Lent::Http2(_) => {
                *request.uri_mut() = locations.absolute.clone();
                *request.version_mut() = Version::HTTP_2;
            }
        }
        // hyper gives every body its length, but takes an empty one for none.
        if errand.body.is_empty() && !matches!(errand.method, Method::GET | Method::HEAD) {
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        if !headers.contains_key(USER_AGENT) {
            headers.insert(USER_AGENT, self.user_agent.clone());
        }
        if let Some(authorization) = &target.authorization
            && !headers.contains_key(AUTHORIZATION)
        {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        *request.headers_mut() = headers;
        Some(request)
    }

    /// Keeps the connection for the next errand where that is possible.
    fn keep(&self, target: &Target, lent: Lent, received: Received) -> Response {
        if let Lent::Http1(connection) = lent
            && received.is_complete
        {
            self.pool.put_back(&target.origin, connection);
        }
        received.response
    }
}

impl Lent {
    async fn exchange(&mut self, request: Sent, trace: &mut Trace) -> Result<Received, Broken> {
        match self {
            Self::Http1(connection) => connection.exchange(request, trace).await,
            Self::Http2(connection) => connection.exchange(request, trace).await,
        }
    }

    fn meter(&self) -> &wire::Meter {
        match self {
            Self::Http1(connection) => connection.meter(),
            Self::Http2(connection) => connection.meter(),
        }
    }

    fn remedy(&self, broken: &Broken, phase: Phase) -> Remedy {
        match self {
            _ if phase == Phase::Body => Remedy::None,
            Self::Http1(connection) => {
                let is_stale = connection.is_reused && connection.meter().received() == 0;
                if is_stale { Remedy::SendAgain } else { Remedy::None }
            }
            Self::Http2(connection) => connection.remedy(broken),
        }
    }
}
