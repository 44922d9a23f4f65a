//! Applications.

use super::{ITERATOR, LIMIT, ORDER, Parameter, parameter, uid_of_path, until_fresh};
use crate::call::{Access, Answer, Call, Operation};
use crate::error::{Refusal, Result};
use crate::page::{self, ListOut};
use crate::wire::application::{ApplicationDraft, ApplicationIn, ApplicationOut, ApplicationPatch};
use crate::wire::decode;
use http::{Method, StatusCode};
use posthaste_core::endpoint::Application;
use posthaste_core::event::ApplicationUid;
use posthaste_core::id::ApplicationId;
use posthaste_store::catalog::Order;
use std::time::Duration;

const PATH: &str = "/api/v1/app";
const ONE: &str = "/api/v1/app/{app_id}";
const GET_IF_EXISTS: Parameter =
    parameter("get_if_exists", "boolean", "Answers 200 with the one that has this uid already.");

pub(super) fn operations() -> Vec<Operation> {
    use Access::{Application, Organisation};
    vec![
        Operation::new(
            (Method::GET, PATH),
            "v1.application.list",
            Organisation,
            "Lists applications, oldest first unless told otherwise.",
            |call| Box::pin(list(call)),
        )
        .query(&[LIMIT, ITERATOR, ORDER])
        .gives::<ListOut<ApplicationOut>>(200),
        Operation::new(
            (Method::POST, PATH),
            "v1.application.create",
            Organisation,
            "Creates an application.",
            |call| Box::pin(create(call)),
        )
        .query(&[GET_IF_EXISTS])
        .takes::<ApplicationIn>()
        .gives::<ApplicationOut>(200)
        .gives::<ApplicationOut>(201),
        Operation::new(
            (Method::GET, ONE),
            "v1.application.get",
            Application,
            "Reads an application by id or uid.",
            |call| Box::pin(get(call)),
        )
        .gives::<ApplicationOut>(200),
        Operation::new(
            (Method::PUT, ONE),
            "v1.application.update",
            Organisation,
            "Replaces an application, or creates it with the path's text as its uid.",
            |call| Box::pin(update(call)),
        )
        .takes::<ApplicationIn>()
        .gives::<ApplicationOut>(200)
        .gives::<ApplicationOut>(201),
        Operation::new(
            (Method::PATCH, ONE),
            "v1.application.patch",
            Organisation,
            "Changes some fields of an application.",
            |call| Box::pin(patch(call)),
        )
        .takes::<ApplicationPatch>()
        .gives::<ApplicationOut>(200),
        Operation::new(
            (Method::DELETE, ONE),
            "v1.application.delete",
            Organisation,
            "Deletes an application; what its endpoints still wait for is cancelled.",
            |call| Box::pin(delete(call)),
        )
        .gives_nothing(204),
    ]
}

async fn list(call: Call) -> Result<Answer> {
    let order = page::order(&call.query, Order::Ascending)?;
    let page = page::page(&call.query, order, str::parse::<ApplicationId>)?;
    let slice = call.shared.store.applications(&call.caller.organisation, page).await?;
    Answer::ok(&ListOut::new(slice, |application| application.id, ApplicationOut::from))
}

async fn create(call: Call) -> Result<Answer> {
    let get_if_exists = call.query.flag("get_if_exists", false)?;
    let draft = decode::<ApplicationIn>(&call.body)?.checked()?;
    if let (true, Some(Some(uid))) = (get_if_exists, &draft.uid)
        && let Some(found) = call.find_application(uid.as_str()).await?
    {
        return Answer::ok(&ApplicationOut::from(found));
    }
    let uid = draft.uid.clone().flatten();
    let created = insert(&call, draft, uid.clone()).await;
    match (created, uid) {
        // Somebody else created it in between.
        (Err(refusal), Some(uid)) if get_if_exists => {
            let found = call.find_application(uid.as_str()).await?;
            Answer::ok(&ApplicationOut::from(found.ok_or(refusal)?))
        }
        (created, _) => Answer::json(StatusCode::CREATED, &ApplicationOut::from(created?)),
    }
}

async fn get(call: Call) -> Result<Answer> {
    Answer::ok(&ApplicationOut::from(call.application().await?))
}

/// Fields that are not given are reset. The uid is reset only when the path has the id: a path with
/// the uid says what it is, and a second PUT must find it again.
async fn update(call: Call) -> Result<Answer> {
    let (status, application) = until_fresh(|| async {
        let draft = decode::<ApplicationIn>(&call.body)?.checked()?;
        let name = call.name("app_id");
        let Some(mut application) = call.find_application(name).await? else {
            let of_path = uid_of_path(name, ApplicationUid::new, "Application")?;
            let uid = draft.uid.clone().unwrap_or(Some(of_path));
            let is_of_path = uid.as_ref().is_some_and(|uid| uid.as_str() == name);
            let created = insert(&call, draft, uid).await.map_err(|refusal| match is_of_path {
                true => refusal.made_meanwhile(),
                false => refusal,
            });
            return Ok((StatusCode::CREATED, created?));
        };
        let by_uid = application.uid.as_ref().is_some_and(|uid| uid.as_str() == name);
        application.uid = match draft.uid {
            Some(uid) => uid,
            None => application.uid.filter(|_| by_uid),
        };
        application.name = draft.name;
        application.throttle_rate = draft.throttle_rate;
        application.metadata = draft.metadata;
        Ok((StatusCode::OK, write(&call, application).await?))
    })
    .await?;
    Answer::json(status, &ApplicationOut::from(application))
}

async fn patch(call: Call) -> Result<Answer> {
    let application = until_fresh(|| async {
        let mut application = call.application().await?;
        decode::<ApplicationPatch>(&call.body)?.apply(&mut application)?;
        write(&call, application).await
    })
    .await?;
    Answer::ok(&ApplicationOut::from(application))
}

async fn delete(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    call.shared.store.delete_application(application.id, call.now).await?;
    Ok(Answer::nothing())
}

async fn insert(
    call: &Call,
    draft: ApplicationDraft,
    uid: Option<ApplicationUid>,
) -> Result<Application> {
    let application = Application {
        id: ApplicationId::new(call.now, call.random()),
        organisation_id: call.caller.organisation.clone(),
        uid,
        name: draft.name,
        throttle_rate: draft.throttle_rate,
        metadata: draft.metadata,
        created_at: call.now,
        updated_at: call.now,
    };
    call.shared.store.create_application(application.clone()).await?;
    Ok(application)
}

/// The application of a body's `application`, which must be the one in the path: found, or created.
pub(super) async fn find_or_create(call: &Call, given: ApplicationIn) -> Result<Application> {
    let name = call.name("app_id");
    if let Some(found) = call.find_application(name).await? {
        return Ok(found);
    }
    let draft = given.checked().map_err(|refusal| refusal.within("application"))?;
    let loc = ["body", "application", "uid"];
    let Some(uid) = draft.uid.clone().flatten() else {
        return Err(Refusal::problem(&loc, "field required", "application_uid_missing"));
    };
    if uid.as_str() != name {
        let message = "must be the uid in the path";
        return Err(Refusal::problem(&loc, message, "application_uid_mismatch"));
    }
    match insert(call, draft, Some(uid)).await {
        Ok(created) => Ok(created),
        // Somebody else created it in between.
        Err(refusal) => call.find_application(name).await?.ok_or(refusal),
    }
}

async fn write(call: &Call, mut application: Application) -> Result<Application> {
    let read_at = application.updated_at;
    // Strictly later, so that a change cannot go unnoticed by who read the version before.
    application.updated_at = call.now.max(read_at.after(Duration::from_micros(1)));
    call.shared.store.update_application(application.clone(), read_at).await?;
    Ok(application)
}
