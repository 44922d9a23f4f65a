//! Dead letters: what was given up, and why.

use super::{AFTER, BEFORE, ITERATOR, LIMIT, Parameter, parameter};
use crate::call::{Access, Answer, Call, Operation};
use crate::error::{Refusal, Result};
use crate::page::{self, ListOut};
use crate::wire::misc::DeadLetterOut;
use crate::wire::time::Time;
use http::Method;
use posthaste_core::endpoint::Application;
use posthaste_core::id::{ApplicationId, MessageId};
use posthaste_core::limits::PAGE_ITEMS_MAX;
use posthaste_store::catalog::{Cursor, Order, Page};
use posthaste_store::history::{DeadLetterFilter, Delivery};

const APP: Parameter = parameter("app", "string", "Id or uid of an application.");
const ENDPOINT: Parameter =
    parameter("endpoint", "string", "Id or uid of an endpoint of that application.");
/// Applications that a list without `app` looks through.
const APPLICATIONS_MAX: usize = 10_000;

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::new(
            (Method::GET, "/api/v1/dead-letter"),
            "v1.dead-letter.list",
            Access::Application,
            "Lists deliveries that were given up, newest message first.",
            |call| Box::pin(list(call)),
        )
        .query(&[LIMIT, ITERATOR, APP, ENDPOINT, BEFORE, AFTER])
        .gives::<ListOut<DeadLetterOut>>(200),
    ]
}

async fn list(call: Call) -> Result<Answer> {
    let page = page::page(&call.query, Order::Descending, str::parse::<MessageId>)?;
    let before = call.query.time("before")?;
    let after = call.query.time("after")?;
    let application = match call.query.text("app") {
        Some(name) => Some(named(&call, &name).await?),
        None => None,
    };
    let endpoint_id = match (call.query.text("endpoint"), &application) {
        (None, _) => None,
        (Some(_), None) => return Err(Refusal::query("endpoint", "needs `app` beside it")),
        (Some(name), Some(application)) => {
            let found = call.shared.store.endpoint(application.id, &name).await?;
            Some(found.ok_or(Refusal::not_found("Endpoint"))?.id)
        }
    };
    let application_ids = match (&application, call.caller.application) {
        (Some(application), _) => vec![application.id],
        (None, Some(own)) => vec![own],
        (None, None) => all_applications(&call).await?,
    };
    let application_ids = Some(application_ids);
    let filter = DeadLetterFilter { application_ids, endpoint_id, before, after };
    let slice = call.shared.store.dead_letters(filter, page).await?;
    Answer::ok(&ListOut::new(slice, |delivery| delivery.key.message_id, shown))
}

async fn named(call: &Call, name: &str) -> Result<Application> {
    call.find_application(name).await?.ok_or(Refusal::not_found("Application"))
}

/// The applications of the caller's organisation, so that nobody sees another's dead letters.
async fn all_applications(call: &Call) -> Result<Vec<ApplicationId>> {
    let mut ids = Vec::new();
    loop {
        let from = ids.last().copied().map(Cursor::After);
        let page = Page { limit: PAGE_ITEMS_MAX, order: Order::Ascending, from };
        let slice = call.shared.store.applications(&call.caller.organisation, page).await?;
        ids.extend(slice.items.iter().map(|application| application.id));
        if !slice.more || slice.items.is_empty() {
            return Ok(ids);
        }
        if ids.len() >= APPLICATIONS_MAX {
            let message = format!("is needed where there are more than {APPLICATIONS_MAX}");
            return Err(Refusal::query("app", message));
        }
    }
}

fn shown(delivery: Delivery) -> DeadLetterOut {
    DeadLetterOut {
        msg_id: delivery.key.message_id.to_string(),
        endpoint_id: delivery.key.endpoint_id.to_string(),
        app_id: delivery.application_id.to_string(),
        attempts: delivery.attempts,
        accepted_at: Time(delivery.accepted_at),
        ended_at: delivery.ended_at.map(Time),
        cause: delivery.cause,
        last_status: delivery.last_status,
    }
}
