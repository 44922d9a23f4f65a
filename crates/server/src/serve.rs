//! The listener: connections, their bounds, and an orderly end.

use crate::fallback;
use crate::places::{Place, Places};
use crate::stall::Impatient;
use axum::Router;
use axum::response::Response;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_service::Service as _;

/// The bounds of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ServeLimits {
    /// Connections at once. One more takes the place of that which has been without a request for
    /// longest, or waits while there is none.
    pub connections_max: usize,
    /// A connection keeps its place at least so long after it was opened or answered.
    pub place_time_min: Duration,
    /// A client whose request head takes longer is cut off; also ends idle connections.
    pub head_time_max: Duration,
    /// A client that takes nothing of its answer for so long is cut off.
    pub stall_time_max: Duration,
    /// How long requests in flight may still take after the stop.
    pub drain_time_max: Duration,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            connections_max: 4_096,
            place_time_min: Duration::from_secs(1),
            head_time_max: Duration::from_secs(60),
            stall_time_max: Duration::from_secs(60),
            drain_time_max: Duration::from_secs(10),
        }
    }
}

/// A pause after an accept that failed for want of something (file descriptors), so that it is not
/// tried again in a tight loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Most of what a request's head may hold.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Serves `routes` until `stop` is ready. Then nothing new is accepted, requests in flight are
/// finished within `drain_time_max`, and what is left is cut off.
///
/// # Errors
/// When the listener itself cannot be used any more.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    limits: ServeLimits,
    stop: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let graceful = GracefulShutdown::new();
    let permits = Arc::new(Semaphore::new(limits.connections_max));
    let mut places = Places::default();
    let mut connections = tokio::task::JoinSet::new();
    let mut stop = pin!(stop);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_time_max)
        .max_buf_size(HEAD_BYTES_MAX);
    loop {
        let next = async {
            let stream = accept(&listener, &mut places).await;
            (stream, permit(&permits, &mut places, limits.place_time_min).await)
        };
        let (stream, permit) = tokio::select! {
            next = next => next,
            () = &mut stop => break,
        };
        let place = places.take();
        let front = {
            let (routes, place) = (routes.clone(), place.clone());
            service_fn(move |request| answer(routes.clone(), place.clone(), request))
        };
        let connection = graceful.watch(http.serve_connection(io_of(stream, limits), front));
        connections.spawn(async move {
            let ended = tokio::select! {
                ended = connection => ended,
                () = place.wanted() => Ok(()),
            };
            // A client's broken connection is its own affair.
            if let Err(error) = ended {
                tracing::trace!(error = %error, "a connection ended early");
            }
            place.leave();
            drop(permit);
        });
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    if tokio::time::timeout(limits.drain_time_max, graceful.shutdown()).await.is_err() {
        let left = connections.len();
        tracing::warn!(left, "cut off connections that did not end in time");
    }
    connections.shutdown().await;
    Ok(())
}

/// The next connection that can be used.
async fn accept(listener: &TcpListener, places: &mut Places) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) if is_of_connection(&error) => {}
            Err(error) => {
                tracing::warn!(error = %error, "cannot accept connections now");
                if !places.free_one() {
                    places.next_round();
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Room for one more connection; `None` would mean that the listener has ended.
async fn permit(
    permits: &Arc<Semaphore>,
    places: &mut Places,
    round: Duration,
) -> Option<OwnedSemaphorePermit> {
    while permits.available_permits() == 0 {
        let freed = places.free_one();
        let room = permits.clone().acquire_owned();
        match tokio::time::timeout(round, room).await {
            Ok(permit) => return permit.ok(),
            Err(_elapsed) if freed => {}
            Err(_elapsed) => places.next_round(),
        }
    }
    permits.clone().acquire_owned().await.ok()
}

/// The routes as hyper calls them.
async fn answer(
    mut routes: Router,
    place: Arc<Place>,
    mut request: Request<Incoming>,
) -> Result<Response, Infallible> {
    // One slash at the end has a route of its own; a path with more could pass for one with an
    // empty name in it.
    if request.uri().path().ends_with("//")
        && let Some(uri) = fallback::trimmed(request.uri())
    {
        *request.uri_mut() = uri;
    }
    place.serve(routes.call(request)).await
}

fn io_of(stream: TcpStream, limits: ServeLimits) -> TokioIo<Impatient> {
    // Answers are written whole; waiting for more to send would only delay them. A socket that
    // refuses the option still works.
    let _ = stream.set_nodelay(true);
    TokioIo::new(Impatient::new(stream, limits.stall_time_max))
}

/// Errors of the connection that was to be accepted, not of the listener.
fn is_of_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}
