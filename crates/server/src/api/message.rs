//! Messages: publishing, which is the hot road, and reading them back.

use super::{
    AFTER, BEFORE, CHANNEL, EVENT_TYPES, ITERATOR, LIMIT, Parameter, WITH_CONTENT, application,
};
use crate::call::{Access, Answer, Call, Operation, Repetition};
use crate::error::{Refusal, Result};
use crate::idempotency;
use crate::page::{self, ListOut};
use crate::query::Query;
use crate::wire::decode;
use crate::wire::message::{MessageIn, MessageOut};
use http::{Method, StatusCode};
use posthaste_core::event::{Channel, EventTypeName};
use posthaste_core::id::MessageId;
use posthaste_core::message::Message;
use posthaste_core::time::Timestamp;
use posthaste_store::catalog::{Cursor, Order, Page};
use posthaste_store::history::MessageFilter;
use posthaste_store::outbox::{Acceptance, Accepted, IdempotencyKey};
use std::sync::Arc;

/// How often a message is routed again because the routes changed in between.
const ROUTE_TRIES: u32 = 10;

const PATH: &str = "/api/v1/app/{app_id}/msg";
const LISTED: &[Parameter] = &[LIMIT, ITERATOR, CHANNEL, EVENT_TYPES, BEFORE, AFTER, WITH_CONTENT];

pub(super) fn operations() -> Vec<Operation> {
    let create = Operation::new(
        (Method::POST, PATH),
        "v1.message.create",
        Access::Organisation,
        "Publishes a message. Answered once it and its deliveries are durable.",
        |call| Box::pin(create(call)),
    );
    vec![
        Operation { repetition: Repetition::ByHandler, ..create }
            .query(&[WITH_CONTENT])
            .takes::<MessageIn<'_>>()
            .gives::<MessageOut<'_>>(202),
        Operation::new(
            (Method::GET, PATH),
            "v1.message.list",
            Access::Application,
            "Lists messages, newest first.",
            |call| Box::pin(list(call)),
        )
        .query(LISTED)
        .gives::<ListOut<MessageOut<'_>>>(200),
        Operation::new(
            (Method::GET, "/api/v1/app/{app_id}/msg/{msg_id}"),
            "v1.message.get",
            Access::Application,
            "Reads a message by id or event id.",
            |call| Box::pin(get(call)),
        )
        .query(&[WITH_CONTENT])
        .gives::<MessageOut<'_>>(200),
    ]
}

async fn create(call: Call) -> Result<Answer> {
    let with_content = call.query.flag("with_content", true)?;
    let mut input: MessageIn<'_> = decode(&call.body)?;
    let draft = input.checked(&call.body, &call.shared.settings)?;
    let application = match input.application.take() {
        Some(given) => application::find_or_create(&call, given).await?,
        None => call.application().await?,
    };
    let id = MessageId::new(call.now, call.random());
    let message = Arc::new(draft.message(id, application.id, call.now));
    let repeats = accept(&call, &message, idempotency::stored_key(&call)).await?;
    // A raw body was sent instead of the payload; it is shown by its own rules.
    let raw = input.transformations_params.as_ref().is_some_and(|it| it.raw_payload.is_some());
    let payload = input.payload.filter(|_| !raw);
    let Some(first) = repeats else {
        call.shared.traffic.accepted();
        let out = MessageOut::published(&message, payload, with_content);
        return Answer::json(StatusCode::ACCEPTED, &out);
    };
    call.shared.traffic.repeated();
    // The body is the same, so only what we chose ourselves is different.
    let found = call.shared.store.message(application.id, &first.to_string()).await?;
    let created_at = found.map_or(first.timestamp(), |found| found.created_at);
    let same = Message { id: first, created_at, ..Message::clone(&message) };
    let out = MessageOut::published(&same, payload, with_content);
    Answer::json(StatusCode::ACCEPTED, &out)
}

/// Commits the message and its deliveries. `Some`: an earlier request with this key did, as that
/// message.
async fn accept(
    call: &Call,
    message: &Arc<Message>,
    idempotency: Option<IdempotencyKey>,
) -> Result<Option<MessageId>> {
    let (store, queue) = (&call.shared.store, &call.shared.queue);
    for _ in 0..ROUTE_TRIES {
        let routes = store.routes(message.application_id).await?;
        let routes = routes.ok_or(Refusal::not_found("Application"))?;
        queue.pace(&routes).await;
        let offer = queue.offer(&routes, message.clone());
        let acceptance = Acceptance {
            message: message.clone(),
            routes_version: routes.version,
            deliveries: offer.deliveries().to_vec(),
            idempotency,
            lease: offer.lease(),
        };
        match store.accept(acceptance).await? {
            Accepted::Committed => {
                offer.committed();
                return Ok(None);
            }
            Accepted::Repeated(first) => return Ok(Some(first)),
            Accepted::KeyReused => return Err(idempotency::reused()),
            Accepted::EventIdTaken(_) => {
                let detail = "a message with this `eventId` exists in the application";
                return Err(Refusal::conflict(detail));
            }
            Accepted::NoApplication => return Err(Refusal::not_found("Application")),
            Accepted::RoutesChanged => {}
        }
    }
    tracing::warn!("the routes of an application change faster than a message can be accepted");
    Err(Refusal::unavailable())
}

async fn list(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    let filter = filter(&call.query)?;
    let page = page(&call.query, &filter, str::parse::<MessageId>, MessageId::lower_bound)?;
    let with_content = call.query.flag("with_content", true)?;
    let slice = call.shared.store.messages(application.id, filter, page).await?;
    let show = |message| MessageOut::new(message, with_content);
    Answer::ok(&ListOut::borrowing(&slice, |message| message.id, show))
}

async fn get(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    let with_content = call.query.flag("with_content", true)?;
    Answer::ok(&MessageOut::new(&call.message(&application).await?, with_content))
}

/// Reads `channel`, `event_types`, `before` and `after`.
pub(super) fn filter(query: &Query) -> Result<MessageFilter> {
    let names = query.list("event_types");
    let names = names.iter().map(|text| EventTypeName::new(text)).collect::<Result<_, _>>();
    Ok(MessageFilter {
        channel: query.parse("channel", Channel::new)?,
        event_types: names.map_err(|error| Refusal::query("event_types", error))?,
        before: query.time("before")?,
        after: query.time("after")?,
    })
}

/// The page of a list that is newest first. With `after` alone it is the one nearest to it, so that
/// a client can follow what comes in, by `prevIterator`, from a time on.
pub(super) fn page<Key, E: std::fmt::Display>(
    query: &Query,
    filter: &MessageFilter,
    parse: impl Fn(&str) -> Result<Key, E>,
    lower_bound: impl Fn(Timestamp) -> Key,
) -> Result<Page<Key>> {
    let mut page = page::page(query, Order::Descending, parse)?;
    if let (None, None, Some(after)) = (&page.from, filter.before, filter.after) {
        page.from = Some(Cursor::Before(lower_bound(after)));
    }
    Ok(page)
}
