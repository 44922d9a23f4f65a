//! Attempts, and how deliveries stand.

use super::message::{filter, page};
use super::{
    AFTER, BEFORE, CHANNEL, EVENT_TYPES, ITERATOR, LIMIT, Parameter, WITH_CONTENT, parameter,
};
use crate::call::{Access, Answer, Call, Operation};
use crate::error::{Refusal, Result};
use crate::page::ListOut;
use crate::query::Query;
use crate::wire::attempt::{EndpointMessageOut, MessageAttemptOut, MessageEndpointOut, Status};
use crate::wire::misc::Empty;
use http::{Method, StatusCode};
use posthaste_core::delivery::DeliveryKey;
use posthaste_core::id::{AttemptId, EndpointId, MessageId};
use posthaste_store::catalog::{Order, Page};
use posthaste_store::history::{AttemptFilter, Delivery};
use posthaste_store::outbox::Resent;
use posthaste_store::{Kind, catalog};

const STATUS: Parameter =
    parameter("status", "integer", "0 success, 1 pending, 2 fail, 3 sending.");
const STATUS_CLASS: Parameter =
    parameter("status_code_class", "integer", "100, 200, 300, 400 or 500.");
const ENDPOINT: Parameter = parameter("endpoint_id", "string", "Id or uid of an endpoint.");

const BY_ENDPOINT: &[Parameter] =
    &[LIMIT, ITERATOR, STATUS, STATUS_CLASS, CHANNEL, EVENT_TYPES, BEFORE, AFTER, WITH_CONTENT];
const BY_MESSAGE: &[Parameter] = &[
    LIMIT,
    ITERATOR,
    STATUS,
    STATUS_CLASS,
    CHANNEL,
    EVENT_TYPES,
    ENDPOINT,
    BEFORE,
    AFTER,
    WITH_CONTENT,
];
const MESSAGES: &[Parameter] =
    &[LIMIT, ITERATOR, STATUS, CHANNEL, EVENT_TYPES, BEFORE, AFTER, WITH_CONTENT];

pub(super) fn operations() -> Vec<Operation> {
    use Access::Application;
    vec![
        Operation::new(
            (Method::GET, "/api/v1/app/{app_id}/attempt/endpoint/{endpoint_id}"),
            "v1.message-attempt.list-by-endpoint",
            Application,
            "Lists attempts for an endpoint, newest first.",
            |call| Box::pin(by_endpoint(call)),
        )
        .query(BY_ENDPOINT)
        .gives::<ListOut<MessageAttemptOut>>(200),
        Operation::new(
            (Method::GET, "/api/v1/app/{app_id}/attempt/msg/{msg_id}"),
            "v1.message-attempt.list-by-msg",
            Application,
            "Lists attempts of a message, newest first.",
            |call| Box::pin(by_message(call)),
        )
        .query(BY_MESSAGE)
        .gives::<ListOut<MessageAttemptOut>>(200),
        Operation::new(
            (Method::GET, "/api/v1/app/{app_id}/msg/{msg_id}/attempt/{attempt_id}"),
            "v1.message-attempt.get",
            Application,
            "Reads an attempt.",
            |call| Box::pin(get(call)),
        )
        .gives::<MessageAttemptOut>(200),
        Operation::new(
            (Method::GET, "/api/v1/app/{app_id}/endpoint/{endpoint_id}/msg"),
            "v1.message-attempt.list-attempted-messages",
            Application,
            "Lists messages that go to an endpoint, and how they stand, newest first.",
            |call| Box::pin(messages(call)),
        )
        .query(MESSAGES)
        .gives::<ListOut<EndpointMessageOut<'_>>>(200),
        Operation::new(
            (Method::GET, "/api/v1/app/{app_id}/msg/{msg_id}/endpoint"),
            "v1.message-attempt.list-attempted-destinations",
            Application,
            "Lists endpoints that a message goes to, and how it stands with each; deleted \
             endpoints and those not tried yet too.",
            |call| Box::pin(endpoints(call)),
        )
        .query(&[LIMIT, ITERATOR])
        .gives::<ListOut<MessageEndpointOut>>(200),
        Operation::new(
            (Method::POST, "/api/v1/app/{app_id}/msg/{msg_id}/endpoint/{endpoint_id}/resend"),
            "v1.message-attempt.resend",
            Application,
            "Makes one more attempt now, whatever the filters say. Planned retries stay planned.",
            |call| Box::pin(resend(call)),
        )
        .gives::<Empty>(202),
    ]
}

async fn by_endpoint(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    let endpoint = call.endpoint(&application).await?;
    let Some(wanted) = wanted(&call.query)? else { return nothing::<MessageAttemptOut>() };
    let page = attempts_page(&call.query, &wanted)?;
    let slice = call.shared.store.attempts_of_endpoint(endpoint.id, wanted, page).await?;
    attempts(&call.query, slice)
}

async fn by_message(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    let message = call.message(&application).await?;
    let Some(mut wanted) = wanted(&call.query)? else { return nothing::<MessageAttemptOut>() };
    if let Some(name) = call.query.text("endpoint_id") {
        let found = call.shared.store.endpoint(application.id, &name).await?;
        wanted.endpoint_id = Some(found.ok_or(Refusal::not_found("Endpoint"))?.id);
    }
    let page = attempts_page(&call.query, &wanted)?;
    let store = &call.shared.store;
    let slice = store.attempts_of_message(application.id, message.id, wanted, page).await?;
    attempts(&call.query, slice)
}

async fn get(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    let message = call.message(&application).await?;
    let missing = || Refusal::not_found("Message attempt");
    let id = call.name("attempt_id").parse::<AttemptId>().map_err(|_| missing())?;
    let found = call.shared.store.attempt(application.id, message.id, id).await?;
    let with_content = call.query.flag("with_content", true)?;
    Answer::ok(&MessageAttemptOut::new(found.ok_or_else(missing)?, with_content))
}

async fn messages(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    let endpoint = call.endpoint(&application).await?;
    let filter = filter(&call.query)?;
    let states = Status::wanted(&call.query)?.map(Status::states);
    let page = page(&call.query, &filter, str::parse::<MessageId>, MessageId::lower_bound)?;
    let with_content = call.query.flag("with_content", true)?;
    let store = &call.shared.store;
    let slice = store.messages_of_endpoint(endpoint.id, filter, states, page).await?;
    Answer::ok(&ListOut::borrowing(
        &slice,
        |(message, _)| message.id,
        |(message, delivery)| EndpointMessageOut::new(message, delivery.clone(), with_content),
    ))
}

async fn endpoints(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    let message = call.message(&application).await?;
    let page = crate::page::page(&call.query, Order::Ascending, str::parse::<EndpointId>)?;
    let store = &call.shared.store;
    let routes = store.routes(application.id).await?;
    let routes = routes.ok_or(Refusal::not_found("Application"))?;
    let slice = store.deliveries_of_message(application.id, message.id, page).await?;
    let mut shown = Vec::with_capacity(slice.items.len());
    for delivery in slice.items {
        let id = delivery.key.endpoint_id;
        let out = match routes.endpoints.iter().find(|endpoint| endpoint.id == id) {
            Some(endpoint) => MessageEndpointOut::new(endpoint, delivery),
            None => of_deleted(&call, delivery).await?,
        };
        shown.push((id, out));
    }
    let slice = catalog::Slice { items: shown, more: slice.more };
    Answer::ok(&ListOut::new(slice, |(id, _)| *id, |(_, out)| out))
}

/// Of a deleted endpoint the last attempt still tells where it went.
async fn of_deleted(call: &Call, delivery: Delivery) -> Result<MessageEndpointOut> {
    let DeliveryKey { endpoint_id, message_id } = delivery.key;
    let filter = AttemptFilter { endpoint_id: Some(endpoint_id), ..AttemptFilter::default() };
    let page = Page { limit: 1, order: Order::Descending, from: None };
    let store = &call.shared.store;
    let application_id = delivery.application_id;
    let last = store.attempts_of_message(application_id, message_id, filter, page).await?;
    let url = last.items.first().map(|attempt| attempt.url.as_str());
    Ok(MessageEndpointOut::of_deleted(delivery, url))
}

/// Unlike Svix we say so when the endpoint is disabled and nothing will be sent.
async fn resend(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    let message = call.message(&application).await?;
    let endpoint = call.endpoint(&application).await?;
    let key = DeliveryKey { endpoint_id: endpoint.id, message_id: message.id };
    match call.shared.store.resend(key, call.now).await {
        Ok(Resent::Due) => call.shared.queue.nudge(),
        Ok(Resent::InFlight) => {}
        Ok(Resent::EndpointDisabled) => {
            let detail = "the endpoint is disabled; enable it first";
            return Err(Refusal::new(StatusCode::CONFLICT, "endpoint_disabled", detail));
        }
        Err(error) if error.kind() == Kind::Limit => {
            let detail = "the payload is gone: its retention ended, or it was expunged";
            return Err(Refusal::bad_request("missing_payload", detail));
        }
        Err(error) => return Err(error.into()),
    }
    Answer::json(StatusCode::ACCEPTED, &Empty {})
}

/// What of attempts is asked for; `None`: what no attempt ever is (pending or sending).
fn wanted(query: &Query) -> Result<Option<AttemptFilter>> {
    let delivered = match Status::wanted(query)? {
        None => None,
        Some(Status::Success) => Some(true),
        Some(Status::Fail) => Some(false),
        Some(Status::Pending | Status::Sending) => return Ok(None),
    };
    let class = query.number("status_code_class")?;
    let status_class = match class {
        None => None,
        Some(class @ (100 | 200 | 300 | 400 | 500)) => u16::try_from(class).ok(),
        Some(_) => {
            return Err(Refusal::bad_query("status_code_class", "100, 200, 300, 400 or 500"));
        }
    };
    let message = filter(query)?;
    Ok(Some(AttemptFilter { message, delivered, status_class, endpoint_id: None }))
}

fn attempts_page(query: &Query, wanted: &AttemptFilter) -> Result<Page<AttemptId>> {
    page(query, &wanted.message, str::parse::<AttemptId>, AttemptId::lower_bound)
}

fn attempts(
    query: &Query,
    slice: catalog::Slice<posthaste_store::history::StoredAttempt>,
) -> Result<Answer> {
    let with_content = query.flag("with_content", true)?;
    let show = |attempt| MessageAttemptOut::new(attempt, with_content);
    Answer::ok(&ListOut::new(slice, |attempt| attempt.id, show))
}

fn nothing<T: serde::Serialize>() -> Result<Answer> {
    Answer::ok(&ListOut::<T>::finished())
}
