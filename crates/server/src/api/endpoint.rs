//! Endpoints.

use super::{ITERATOR, LIMIT, ORDER, uid_of_path, until_fresh};
use crate::SecretKind;
use crate::call::{Access, Answer, Call, Operation};
use crate::error::{Problems, Refusal, Result};
use crate::page::{self, ListOut};
use crate::wire::decode;
use crate::wire::endpoint::{EndpointDraft, EndpointIn, EndpointOut, EndpointPatch};
use http::{Method, StatusCode};
use posthaste_core::endpoint::{Application, Endpoint, EndpointHeaders, EndpointPolicy};
use posthaste_core::event::{EndpointUid, EventTypeName};
use posthaste_core::id::EndpointId;
use posthaste_core::sign::{Secret, SecretRing};
use posthaste_store::catalog::Order;
use std::time::Duration;

const PATH: &str = "/api/v1/app/{app_id}/endpoint";
const ONE: &str = "/api/v1/app/{app_id}/endpoint/{endpoint_id}";

pub(super) fn operations() -> Vec<Operation> {
    use Access::Application;
    vec![
        Operation::new(
            (Method::GET, PATH),
            "v1.endpoint.list",
            Application,
            "Lists endpoints, newest first unless told otherwise.",
            |call| Box::pin(list(call)),
        )
        .query(&[LIMIT, ITERATOR, ORDER])
        .gives::<ListOut<EndpointOut>>(200),
        Operation::new(
            (Method::POST, PATH),
            "v1.endpoint.create",
            Application,
            "Creates an endpoint.",
            |call| Box::pin(create(call)),
        )
        .takes::<EndpointIn>()
        .gives::<EndpointOut>(201),
        Operation::new(
            (Method::GET, ONE),
            "v1.endpoint.get",
            Application,
            "Reads an endpoint by id or uid.",
            |call| Box::pin(get(call)),
        )
        .gives::<EndpointOut>(200),
        Operation::new(
            (Method::PUT, ONE),
            "v1.endpoint.update",
            Application,
            "Replaces an endpoint, but for its secret, headers and (unless given) policy; or \
             creates it with the path's text as its uid.",
            |call| Box::pin(update(call)),
        )
        .takes::<EndpointIn>()
        .gives::<EndpointOut>(200)
        .gives::<EndpointOut>(201),
        Operation::new(
            (Method::PATCH, ONE),
            "v1.endpoint.patch",
            Application,
            "Changes some fields of an endpoint.",
            |call| Box::pin(patch(call)),
        )
        .takes::<EndpointPatch>()
        .gives::<EndpointOut>(200),
        Operation::new(
            (Method::DELETE, ONE),
            "v1.endpoint.delete",
            Application,
            "Deletes an endpoint; what it still waits for is cancelled.",
            |call| Box::pin(delete(call)),
        )
        .gives_nothing(204),
    ]
}

async fn list(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    let order = page::order(&call.query, Order::Descending)?;
    let page = page::page(&call.query, order, str::parse::<EndpointId>)?;
    let slice = call.shared.store.endpoints(application.id, page).await?;
    Answer::ok(&ListOut::new(slice, |endpoint| endpoint.id, EndpointOut::from))
}

async fn create(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    let input: EndpointIn = decode(&call.body)?;
    let endpoint = insert(&call, &application, input, None).await?;
    Answer::json(StatusCode::CREATED, &EndpointOut::from(endpoint))
}

async fn get(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    Answer::ok(&EndpointOut::from(call.endpoint(&application).await?))
}

/// Fields that are not given are reset, but for the uid when the path has it, and the policy.
async fn update(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    let (status, endpoint) = until_fresh(|| async {
        let mut input: EndpointIn = decode(&call.body)?;
        let name = call.name("endpoint_id");
        let found = call.shared.store.endpoint(application.id, name).await?;
        let Some(mut endpoint) = found else {
            let of_path = uid_of_path(name, EndpointUid::new, "Endpoint")?;
            let created = insert(&call, &application, input, Some(of_path)).await;
            return Ok((StatusCode::CREATED, created?));
        };
        let mut problems = Problems::default();
        let https_only = call.shared.settings.https_only;
        let draft = input.checked(&mut problems, Some(&endpoint), https_only);
        let draft = settled(&call, problems, draft).await?;
        let by_uid = endpoint.uid.as_ref().is_some_and(|uid| uid.as_str() == name);
        match &draft.uid {
            Some(uid) => endpoint.uid = uid.clone(),
            None if by_uid => {}
            None => endpoint.uid = None,
        }
        draft.write_to(&mut endpoint);
        Ok((StatusCode::OK, write(&call, endpoint).await?))
    })
    .await?;
    Answer::json(status, &EndpointOut::from(endpoint))
}

async fn patch(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    let endpoint = until_fresh(|| async {
        let mut endpoint = call.endpoint(&application).await?;
        let types_before = endpoint.event_types.clone();
        let mut problems = Problems::default();
        let https_only = call.shared.settings.https_only;
        let input: EndpointPatch = decode(&call.body)?;
        input.apply(&mut problems, &mut endpoint, https_only);
        // Types that it has already may have been archived since; that is no reason to refuse
        // another change.
        if endpoint.event_types != types_before {
            check_types(&call, &mut problems, endpoint.event_types.as_deref()).await?;
        }
        problems.finish()?;
        write(&call, endpoint).await
    })
    .await?;
    Answer::ok(&EndpointOut::from(endpoint))
}

async fn delete(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    let endpoint = call.endpoint(&application).await?;
    call.shared.store.delete_endpoint(endpoint.id, call.now).await?;
    Ok(Answer::nothing())
}

async fn insert(
    call: &Call,
    application: &Application,
    mut input: EndpointIn,
    of_path: Option<EndpointUid>,
) -> Result<Endpoint> {
    let mut problems = Problems::default();
    let secret = match input.secret.take() {
        Some(text) => problems.take("secret", Secret::parse(&text)),
        None => Some(new_secret(call)?),
    };
    let headers = input.headers.take().map_or_else(Vec::new, |pairs| pairs.0);
    let headers = problems.take("headers", EndpointHeaders::new(headers));
    let draft = input.checked(&mut problems, None, call.shared.settings.https_only);
    let draft = settled(call, problems, draft).await?;
    let (Some(secret), Some(headers)) = (secret, headers) else {
        return Err(Refusal::internal());
    };
    let mut endpoint = Endpoint {
        id: EndpointId::new(call.now, call.random()),
        application_id: application.id,
        uid: draft.uid.clone().unwrap_or_else(|| of_path.clone()),
        url: draft.url.clone(),
        description: String::new(),
        disabled: None,
        event_types: None,
        channels: None,
        throttle_rate: None,
        version: 1,
        metadata: posthaste_core::endpoint::Metadata::new(),
        headers,
        secrets: SecretRing::new(secret),
        policy: EndpointPolicy::default(),
        created_at: call.now,
        updated_at: call.now,
    };
    draft.write_to(&mut endpoint);
    let is_of_path = of_path.is_some() && endpoint.uid == of_path;
    match call.shared.store.create_endpoint(endpoint.clone()).await.map_err(Refusal::from) {
        Err(refusal) if is_of_path => Err(refusal.made_meanwhile()),
        created => created.map(|()| endpoint),
    }
}

/// Finishes the checks of a draft: those that need the store.
async fn settled(
    call: &Call,
    mut problems: Problems,
    draft: Option<EndpointDraft>,
) -> Result<EndpointDraft> {
    if let Some(draft) = &draft {
        check_types(call, &mut problems, draft.event_types.as_deref()).await?;
    }
    problems.finish()?;
    draft.ok_or_else(Refusal::internal)
}

/// An endpoint may only ask for event types that exist: a misspelled one would get nothing, ever.
async fn check_types(
    call: &Call,
    problems: &mut Problems,
    names: Option<&[EventTypeName]>,
) -> Result<()> {
    for name in names.unwrap_or_default() {
        let found = call.shared.store.event_type(&call.caller.organisation, name).await?;
        match found {
            None => problems.add("eventTypes", format!("there is no event type `{name}`")),
            Some(found) if found.archived => {
                problems.add("eventTypes", format!("the event type `{name}` is archived"));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// A secret of the kind that this server gives.
pub(super) fn new_secret(call: &Call) -> Result<Secret> {
    match call.shared.settings.secret_kind {
        SecretKind::Hmac => Ok(Secret::generate_hmac(call.random())),
        SecretKind::Ed25519 => Secret::generate_ed25519(call.random()).map_err(|error| {
            tracing::error!(error = %error, "no secret could be made");
            Refusal::internal()
        }),
    }
}

/// Writes an endpoint that was read before; `Refusal::is_stale` when somebody else was faster.
pub(super) async fn write(call: &Call, mut endpoint: Endpoint) -> Result<Endpoint> {
    let read_at = endpoint.updated_at;
    // Strictly later, so that a change cannot go unnoticed by who read the version before.
    endpoint.updated_at = call.now.max(read_at.after(Duration::from_micros(1)));
    call.shared.store.update_endpoint(endpoint.clone(), read_at).await?;
    // It may have been enabled, or have got a URL that works.
    call.shared.queue.nudge();
    Ok(endpoint)
}
