//! One request from its first byte to its answer: who asks, what for, the handler, the log line.
//!
//! Operations are data (`Operation`); the routes and the OpenAPI document are made from the same
//! list, so neither can have what the other lacks.

use crate::auth::Caller;
use crate::error::{Refusal, Result};
use crate::query::Query;
use crate::traffic::Counter;
use crate::{Shared, body, idempotency};
use axum::extract::{FromRequestParts as _, RawPathParams, Request};
use axum::response::Response;
use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use posthaste_core::endpoint::{Application, Endpoint};
use posthaste_core::message::Message;
use posthaste_core::time::Timestamp;
use schemars::{Schema, SchemaGenerator};
use serde::Serialize;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Who may call an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Anybody,
    /// Any valid token.
    Token,
    /// An organisation token, or an application token; of the latter the handler checks which
    /// application it is for.
    Application,
    Organisation,
}

/// How a repeated `Idempotency-Key` is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repetition {
    /// The first answer is kept and given again.
    AnswerKept,
    /// The handler takes the key into its own transaction.
    ByHandler,
}

/// Most answers fit in this, so that their text is written without growing.
const ANSWER_BYTES_USUAL: usize = 2 * 1024;

type Handled = Pin<Box<dyn Future<Output = Result<Answer>> + Send>>;
pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// One operation of the API.
pub(crate) struct Operation {
    pub method: Method,
    /// With `{name}` for what varies.
    pub path: &'static str,
    pub id: &'static str,
    /// What it does, for the document.
    pub about: &'static str,
    pub access: Access,
    pub repetition: Repetition,
    pub query: &'static [Parameter],
    pub body: Option<SchemaOf>,
    pub answers: Vec<(u16, Option<SchemaOf>)>,
    pub handler: fn(Call) -> Handled,
}

/// One query parameter, for the document.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameter {
    pub name: &'static str,
    /// Its JSON Schema type.
    pub kind: &'static str,
    pub about: &'static str,
}

impl Operation {
    pub fn new(
        (method, path): (Method, &'static str),
        id: &'static str,
        access: Access,
        about: &'static str,
        handler: fn(Call) -> Handled,
    ) -> Self {
        Self {
            method,
            path,
            id,
            about,
            access,
            repetition: Repetition::AnswerKept,
            query: &[],
            body: None,
            answers: Vec::new(),
            handler,
        }
    }

    pub fn query(mut self, parameters: &'static [Parameter]) -> Self {
        self.query = parameters;
        self
    }

    pub fn takes<T: schemars::JsonSchema>(mut self) -> Self {
        self.body = Some(|generator| generator.subschema_for::<T>());
        self
    }

    pub fn gives<T: schemars::JsonSchema>(mut self, status: u16) -> Self {
        self.answers.push((status, Some(|generator| generator.subschema_for::<T>())));
        self
    }

    pub fn gives_nothing(mut self, status: u16) -> Self {
        self.answers.push((status, None));
        self
    }

    fn changes(&self) -> bool {
        !matches!(self.method, Method::GET | Method::HEAD)
    }
}

/// A request on its way to a handler: authenticated, with its body read.
pub(crate) struct Call {
    pub shared: Arc<Shared>,
    pub caller: Arc<Caller>,
    pub path: RawPathParams,
    /// The path as the client wrote it, without trailing slashes.
    pub uri_path: String,
    pub query: Query,
    pub idempotency_key: Option<String>,
    pub body: Bytes,
    pub now: Timestamp,
}

impl Call {
    /// What stands in the path for `{name}`.
    pub fn name(&self, name: &str) -> &str {
        self.path.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value)
    }

    /// The application in the path. For an application token every other one is not there.
    pub async fn application(&self) -> Result<Application> {
        let name = self.name("app_id");
        self.find_application(name).await?.ok_or(Refusal::not_found("Application"))
    }

    pub async fn find_application(&self, name: &str) -> Result<Option<Application>> {
        let found = self.shared.store.application(&self.caller.organisation, name).await?;
        Ok(found.filter(|found| self.caller.application.is_none_or(|own| own == found.id)))
    }

    /// The endpoint in the path.
    pub async fn endpoint(&self, application: &Application) -> Result<Endpoint> {
        let found = self.shared.store.endpoint(application.id, self.name("endpoint_id")).await?;
        found.ok_or(Refusal::not_found("Endpoint"))
    }

    /// The message in the path.
    pub async fn message(&self, application: &Application) -> Result<Message> {
        let found = self.shared.store.message(application.id, self.name("msg_id")).await?;
        found.ok_or(Refusal::not_found("Message"))
    }

    /// Random bytes for an id made at `now`.
    pub fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.shared.dice.fill(&mut bytes);
        bytes
    }
}

/// What is sent back.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub status: StatusCode,
    pub body: Bytes,
    pub content_type: &'static str,
    pub retry_after_secs: Option<u32>,
}

impl Answer {
    /// A body that is JSON already.
    pub fn raw(status: StatusCode, body: Bytes) -> Self {
        Self { status, body, content_type: "application/json", retry_after_secs: None }
    }

    pub fn json(status: StatusCode, body: &impl Serialize) -> Result<Self> {
        let mut text = Vec::with_capacity(ANSWER_BYTES_USUAL);
        serde_json::to_writer(&mut text, body).map_err(|error| {
            tracing::error!(error = %error, "an answer has no JSON form");
            Refusal::internal()
        })?;
        Ok(Self::raw(status, text.into()))
    }

    pub fn ok(body: &impl Serialize) -> Result<Self> {
        Self::json(StatusCode::OK, body)
    }

    pub fn nothing() -> Self {
        Self::raw(StatusCode::NO_CONTENT, Bytes::new())
    }

    pub fn into_response(self) -> Response {
        let has_body = !self.body.is_empty();
        let mut response = Response::new(axum::body::Body::from(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if has_body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
            // Answers hold what changes and what is secret.
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        if let Some(seconds) = self.retry_after_secs {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// One operation where it is served.
pub(crate) struct Route {
    pub shared: Arc<Shared>,
    pub operation: Arc<Operation>,
    pub counter: Arc<Counter>,
}

impl Route {
    pub async fn serve(&self, request: Request) -> Response {
        let started_at = self.shared.clock.now();
        let (parts, body) = request.into_parts();
        let answer = match Caught(Box::pin(self.answer(parts, body, started_at))).await {
            Some(Ok(answer)) => answer,
            Some(Err(refusal)) => refusal.answer(),
            None => {
                tracing::error!(operation = self.operation.id, "a handler panicked");
                Refusal::internal().answer()
            }
        };
        let took = self.shared.clock.now().since(started_at);
        self.counter.count(answer.status, took);
        log(&self.operation, answer.status, took);
        answer.into_response()
    }

    async fn answer(
        &self,
        mut parts: Parts,
        body: axum::body::Body,
        now: Timestamp,
    ) -> Result<Answer> {
        let operation = &self.operation;
        let caller = match self.caller(&parts.headers, now) {
            Ok(caller) => caller,
            Err(refusal) => {
                body::discard(body).await;
                return Err(refusal);
            }
        };
        let path = RawPathParams::from_request_parts(&mut parts, &())
            .await
            .map_err(|_| Refusal::bad_request("generic_error", "the path is not UTF-8"))?;
        let body = if operation.changes() {
            body::read(&parts.headers, body).await?
        } else {
            Bytes::new()
        };
        let call = Call {
            shared: self.shared.clone(),
            caller,
            path,
            uri_path: parts.uri.path().trim_end_matches('/').to_owned(),
            query: Query::new(parts.uri.query()),
            idempotency_key: idempotency::key(&parts.headers)?,
            body,
            now,
        };
        if !operation.changes() {
            return (operation.handler)(call).await;
        }
        let kept = operation.method == Method::POST
            && operation.repetition == Repetition::AnswerKept
            && call.idempotency_key.is_some();
        // A client that goes away must not leave half of a change behind.
        ToItsEnd(Some(match kept {
            true => Box::pin(idempotency::once(call, operation.handler)),
            false => (operation.handler)(call),
        }))
        .await
    }

    fn caller(&self, headers: &HeaderMap, now: Timestamp) -> Result<Arc<Caller>> {
        if self.operation.access == Access::Anybody {
            return Ok(self.shared.nobody.clone());
        }
        let authorization = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let caller = self.shared.verifier.caller(authorization, now)?;
        let of_application = caller.application.is_some();
        if of_application && self.operation.access == Access::Organisation
            || caller.read_only && self.operation.changes()
        {
            return Err(Refusal::forbidden());
        }
        Ok(caller)
    }
}

/// One line per request: no token, no path, no query, no body.
fn log(operation: &Operation, status: StatusCode, took: std::time::Duration) {
    let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    let (operation, status) = (operation.id, status.as_u16());
    if status >= 500 && status != StatusCode::SERVICE_UNAVAILABLE {
        tracing::warn!(operation, status, took_us, "request.answered");
    } else if (400..500).contains(&status) {
        tracing::info!(operation, status, took_us, "request.answered");
    } else {
        // Those that a store that is away costs are as many as there are requests.
        tracing::debug!(operation, status, took_us, "request.answered");
    }
}

/// A future whose panic becomes `None`: the last resort, so that one defect costs one request.
struct Caught<F>(Pin<Box<F>>);

impl<F: Future> Future for Caught<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.0.as_mut();
        match catch_unwind(AssertUnwindSafe(|| future.poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Some(output)),
            Err(_) => Poll::Ready(None),
        }
    }
}

/// A future that, when it is dropped half-way, goes on by itself: the connection may be gone, but
/// what was begun (a commit whose deliveries wait to be handed over) is brought to its end.
struct ToItsEnd(Option<Handled>);

impl Future for ToItsEnd {
    type Output = Result<Answer>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Taken out while it runs: after a panic there is nothing to go on with.
        let Some(mut future) = self.0.take() else {
            return Poll::Ready(Err(Refusal::internal()));
        };
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            self.0 = Some(future);
        }
        polled
    }
}

impl Drop for ToItsEnd {
    fn drop(&mut self) {
        if let (Some(future), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(future);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn a_panic_costs_one_request() {
        let panics = Caught(Box::pin(async {
            tokio::task::yield_now().await;
            panic!("a defect");
        }));
        assert_eq!(panics.await.map(|()| "done"), None);
        assert_eq!(Caught(Box::pin(async { 7 })).await, Some(7));
    }

    #[tokio::test]
    async fn a_change_that_was_begun_is_finished_though_nobody_waits() {
        let (begun, has_begun) = oneshot::channel();
        let (go_on, goes_on) = oneshot::channel::<()>();
        let (finished, has_finished) = oneshot::channel();
        let handled: Handled = Box::pin(async {
            let _ = begun.send(());
            let _ = goes_on.await;
            let _ = finished.send(());
            Ok(Answer::nothing())
        });
        let mut waiting = Box::pin(ToItsEnd(Some(handled)));
        tokio::select! {
            _ = &mut waiting => panic!("it waits for `go_on`"),
            _ = has_begun => {}
        }
        drop(waiting);
        go_on.send(()).unwrap();
        has_finished.await.unwrap();
    }

    #[tokio::test]
    async fn what_has_ended_is_not_run_again() {
        static RAN: AtomicBool = AtomicBool::new(false);
        let handled: Handled = Box::pin(async {
            assert!(!RAN.swap(true, Ordering::SeqCst));
            Ok(Answer::nothing())
        });
        let mut ended = Box::pin(ToItsEnd(Some(handled)));
        assert!(ended.as_mut().await.is_ok());
        assert!(ended.0.is_none());
    }
}
