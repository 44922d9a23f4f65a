//! What the routes do not have: other paths, other methods, preflight requests of browsers.

use crate::error::Refusal;
use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD,
};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, StatusCode, Uri};
use tower_service::Service as _;

const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
/// Seconds for which a browser may remember a preflight.
const MAX_AGE: &str = "600";

/// `routes`, and an answer in JSON for everything else. Any number of slashes at the end of a path
/// is trimmed before it is looked for again.
pub(crate) fn around(routes: Router) -> Router {
    let routes = routes.method_not_allowed_fallback(not_allowed);
    let known = routes.clone().fallback(not_found);
    routes.fallback(move |request: Request| again_without_slashes(known.clone(), request))
}

async fn again_without_slashes(mut routes: Router, mut request: Request) -> Response {
    let Some(uri) = trimmed(request.uri()) else { return not_found(request).await };
    *request.uri_mut() = uri;
    match routes.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// The same without the slashes at the end of its path; `None` when there are none.
pub(crate) fn trimmed(uri: &Uri) -> Option<Uri> {
    let path = uri.path().trim_end_matches('/');
    if path.len() == uri.path().len() || path.is_empty() {
        return None;
    }
    let text = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(text).ok()?);
    Uri::from_parts(parts).ok()
}

async fn not_found(request: Request) -> Response {
    if is_preflight(&request) {
        return preflight(&request);
    }
    // Not 501: client libraries try every 5xx again.
    let path = request.uri().path();
    let refusal = if path.starts_with("/api/") || path.starts_with("/ingest/") {
        Refusal::new(StatusCode::NOT_FOUND, "not_implemented", "this server has no such operation")
    } else {
        Refusal::not_found("Page")
    };
    refusal.answer().into_response()
}

async fn not_allowed(request: Request) -> Response {
    if is_preflight(&request) {
        return preflight(&request);
    }
    let detail = "this path exists, but not with this method; see the `Allow` header";
    let refusal = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail);
    refusal.answer().into_response()
}

fn is_preflight(request: &Request) -> bool {
    request.method() == Method::OPTIONS
        && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// Any origin and method, and the headers that were asked for: tokens are sent in a header, never
/// in a cookie, so a foreign page gains nothing.
fn preflight(request: &Request) -> Response {
    let mut response = Response::new(axum::body::Body::empty());
    let asked = request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS);
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
    if let Some(asked) = asked {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
    }
    response
}
