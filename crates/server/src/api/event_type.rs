//! Event types.

use super::{ITERATOR, LIMIT, ORDER, Parameter, WITH_CONTENT, parameter, until_fresh};
use crate::call::{Access, Answer, Call, Operation};
use crate::error::{Refusal, Result};
use crate::page::{self, ListOut};
use crate::wire::decode;
use crate::wire::event_type::{EventTypeIn, EventTypeOut, EventTypePatch};
use http::{Method, StatusCode};
use posthaste_core::endpoint::EventType;
use posthaste_core::event::EventTypeName;
use posthaste_store::Kind;
use posthaste_store::catalog::{EventTypeFilter, Order};

const PATH: &str = "/api/v1/event-type";
const ONE: &str = "/api/v1/event-type/{event_type_name}";
const INCLUDE_ARCHIVED: Parameter =
    parameter("include_archived", "boolean", "Archived ones too; `false` if absent.");
const EXPUNGE: Parameter =
    parameter("expunge", "boolean", "Removes it whole instead of archiving it.");

pub(super) fn operations() -> Vec<Operation> {
    use Access::{Organisation, Token};
    vec![
        Operation::new(
            (Method::GET, PATH),
            "v1.event-type.list",
            Token,
            "Lists event types by name.",
            |call| Box::pin(list(call)),
        )
        .query(&[LIMIT, ITERATOR, ORDER, INCLUDE_ARCHIVED, WITH_CONTENT])
        .gives::<ListOut<EventTypeOut>>(200),
        Operation::new(
            (Method::POST, PATH),
            "v1.event-type.create",
            Organisation,
            "Creates an event type; an archived one of this name is brought back and overwritten.",
            |call| Box::pin(create(call)),
        )
        .takes::<EventTypeIn>()
        .gives::<EventTypeOut>(201),
        Operation::new(
            (Method::GET, ONE),
            "v1.event-type.get",
            Token,
            "Reads an event type, archived ones too.",
            |call| Box::pin(get(call)),
        )
        .gives::<EventTypeOut>(200),
        Operation::new(
            (Method::PUT, ONE),
            "v1.event-type.update",
            Organisation,
            "Replaces or creates an event type.",
            |call| Box::pin(update(call)),
        )
        .takes::<EventTypeIn>()
        .gives::<EventTypeOut>(200)
        .gives::<EventTypeOut>(201),
        Operation::new(
            (Method::PATCH, ONE),
            "v1.event-type.patch",
            Organisation,
            "Changes some fields of an event type.",
            |call| Box::pin(patch(call)),
        )
        .takes::<EventTypePatch>()
        .gives::<EventTypeOut>(200),
        Operation::new(
            (Method::DELETE, ONE),
            "v1.event-type.delete",
            Organisation,
            "Archives an event type.",
            |call| Box::pin(delete(call)),
        )
        .query(&[EXPUNGE])
        .gives_nothing(204),
    ]
}

async fn list(call: Call) -> Result<Answer> {
    let order = page::order(&call.query, Order::Ascending)?;
    let page = page::page(&call.query, order, EventTypeName::new)?;
    let include_archived = call.query.flag("include_archived", false)?;
    let with_content = call.query.flag("with_content", true)?;
    let flags = &call.caller.feature_flags;
    let feature_flags = call
        .caller
        .application
        .map(|_| flags.iter().map(|flag| flag.as_str().to_owned()).collect());
    let filter = EventTypeFilter { include_archived, feature_flags };
    let slice = call.shared.store.event_types(&call.caller.organisation, filter, page).await?;
    Answer::ok(&ListOut::new(
        slice,
        |found| found.name.clone(),
        |found| EventTypeOut::new(found, with_content),
    ))
}

async fn create(call: Call) -> Result<Answer> {
    let input: EventTypeIn = decode(&call.body)?;
    let created = input.checked(None, call.caller.organisation.clone(), call.now)?;
    match call.shared.store.create_event_type(created.clone()).await {
        Ok(()) => Answer::json(StatusCode::CREATED, &EventTypeOut::new(created, true)),
        Err(error) if error.kind() == Kind::Conflict => {
            let detail = "an event type with this name exists";
            Err(Refusal::new(StatusCode::CONFLICT, "event_type_exists", detail))
        }
        Err(error) => Err(error.into()),
    }
}

async fn get(call: Call) -> Result<Answer> {
    Answer::ok(&EventTypeOut::new(find(&call).await?, true))
}

async fn update(call: Call) -> Result<Answer> {
    let input: EventTypeIn = decode(&call.body)?;
    let name = EventTypeName::new(call.name("event_type_name"))
        .map_err(|error| Refusal::problem(&["path", "event_type_name"], error, "value_error"))?;
    let organisation = &call.caller.organisation;
    let checked = input.checked(Some(name.clone()), organisation.clone(), call.now)?;
    let store = &call.shared.store;
    let (status, event_type) = until_fresh(|| async {
        let mut event_type = checked.clone();
        if let Some(before) = store.event_type(organisation, &name).await? {
            event_type.created_at = before.created_at;
            let written = store.update_event_type(event_type.clone()).await;
            written.map_err(|error| Refusal::from(error).deleted_meanwhile())?;
            return Ok((StatusCode::OK, event_type));
        }
        let written = store.create_event_type(event_type.clone()).await;
        written.map_err(|error| Refusal::from(error).made_meanwhile())?;
        Ok((StatusCode::CREATED, event_type))
    })
    .await?;
    Answer::json(status, &EventTypeOut::new(event_type, true))
}

async fn patch(call: Call) -> Result<Answer> {
    let mut event_type = find(&call).await?;
    decode::<EventTypePatch>(&call.body)?.apply(&mut event_type)?;
    event_type.updated_at = call.now;
    call.shared.store.update_event_type(event_type.clone()).await?;
    Answer::ok(&EventTypeOut::new(event_type, true))
}

async fn delete(call: Call) -> Result<Answer> {
    let expunge = call.query.flag("expunge", false)?;
    let mut event_type = find(&call).await?;
    let store = &call.shared.store;
    if expunge {
        store.delete_event_type(&call.caller.organisation, &event_type.name).await?;
    } else if !event_type.archived {
        event_type.archived = true;
        event_type.updated_at = call.now;
        store.update_event_type(event_type).await?;
    }
    Ok(Answer::nothing())
}

/// The event type in the path; for an application token, flagged ones are there only with the flag.
async fn find(call: &Call) -> Result<EventType> {
    let missing = || Refusal::not_found("Event type");
    let name = EventTypeName::new(call.name("event_type_name")).map_err(|_| missing())?;
    let found = call.shared.store.event_type(&call.caller.organisation, &name).await?;
    let visible = |found: &EventType| {
        call.caller.application.is_none()
            || found
                .feature_flag
                .as_ref()
                .is_none_or(|flag| call.caller.feature_flags.contains(flag))
    };
    found.filter(visible).ok_or_else(missing)
}
