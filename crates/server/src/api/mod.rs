//! The operations: one file per group, one function per operation.

mod application;
mod attempt;
mod auth;
mod dead_letter;
mod endpoint;
mod event_type;
mod headers;
mod health;
mod message;
mod metrics;
pub(crate) mod openapi;
mod recover;
mod secret;
mod status;

use crate::call::{Operation, Parameter};
use crate::error::{Refusal, Result};
use std::future::Future;

/// Everything that is served.
pub(crate) fn operations() -> Vec<Operation> {
    [
        application::operations(),
        endpoint::operations(),
        secret::operations(),
        headers::operations(),
        recover::operations(),
        event_type::operations(),
        message::operations(),
        attempt::operations(),
        auth::operations(),
        health::operations(),
        status::operations(),
        dead_letter::operations(),
        metrics::operations(),
        openapi::operations(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What a process without the API serves.
pub(crate) fn of_any_process() -> Vec<Operation> {
    [health::operations(), metrics::operations()].into_iter().flatten().collect()
}

const fn parameter(name: &'static str, kind: &'static str, about: &'static str) -> Parameter {
    Parameter { name, kind, about }
}

const LIMIT: Parameter = parameter("limit", "integer", "Items on a page: 1 to 250, 50 if absent.");
const ITERATOR: Parameter =
    parameter("iterator", "string", "The `iterator` or `prevIterator` of the page before.");
const ORDER: Parameter = parameter("order", "string", "`ascending` or `descending`.");
const CHANNEL: Parameter = parameter("channel", "string", "Only those with this channel.");
const EVENT_TYPES: Parameter =
    parameter("event_types", "string", "Only these event types, separated by commas.");
const BEFORE: Parameter = parameter("before", "string", "Only those before this time.");
const AFTER: Parameter = parameter(
    "after",
    "string",
    "Only those at or after this time. Without `before` and `iterator` the page nearest to it.",
);
const WITH_CONTENT: Parameter =
    parameter("with_content", "boolean", "Whether contents are shown; `true` if absent.");

/// How often a change is made again on what somebody else changed meanwhile. Each time, one of
/// those who are at it gets through.
const STALE_TRIES: u32 = 32;

/// Reads, changes and writes, again while somebody else is faster.
async fn until_fresh<T, F: Future<Output = Result<T>>>(mut change: impl FnMut() -> F) -> Result<T> {
    let mut tries = 1;
    loop {
        match change().await {
            Err(refusal) if refusal.is_stale() && tries < STALE_TRIES => tries += 1,
            done => return done,
        }
    }
}

/// What a PUT to a path without an object makes of the path's text: the uid of what it creates.
/// Only a text that is no id can become one.
fn uid_of_path<T, E>(text: &str, parse: impl Fn(&str) -> Result<T, E>, what: &str) -> Result<T> {
    parse(text).map_err(|_| Refusal::not_found(what))
}
