//! What a change of the catalogue checks and writes.
//!
//! Whoever changes an application or one of its endpoints locks the application's row first, so
//! that what was checked stays true until it is written.

use super::catalog::sql;
use super::db::{Bind, Tx, Uuid, params};
use super::lanes::sql as lane_sql;
use crate::catalog::Begun;
use crate::lanes::LaneState;
use crate::outbox::IdempotencyKey;
use crate::rows::{self, StoredSecrets};
use crate::{Error, Kind, Result};
use posthaste_core::endpoint::{Application, Endpoint};
use posthaste_core::id::{ApplicationId, EndpointId};
use posthaste_core::limits::ENDPOINTS_PER_APPLICATION_MAX;
use posthaste_core::time::Timestamp;

/// How often a request is looked for that vanishes while we look.
const LOOKS_MAX: usize = 4;

pub(super) fn changed(rows: u64, otherwise: Kind, why: &str) -> Result<()> {
    if rows > 0 { Ok(()) } else { Err(Error::new(otherwise, why)) }
}

pub(super) async fn create_application(tx: &Tx, application: &Application) -> Result<()> {
    check_application_uid(tx, application).await?;
    let row = params![
        Uuid::from(application.id),
        application.organisation_id.as_str(),
        application.uid.as_ref().map(|uid| uid.as_str()),
        application.name.as_str(),
        application.throttle_rate.map(i64::from),
        rows::json(&application.metadata)?,
        application.created_at.as_micros(),
        application.updated_at.as_micros(),
    ];
    let created = tx.run(sql::APPLICATION_INSERT, row).await?;
    changed(created, Kind::Conflict, "an application with this id exists")
}

/// Somebody who takes it between this look and our write makes us lose a race, and look again.
async fn check_application_uid(tx: &Tx, application: &Application) -> Result<()> {
    let Some(uid) = &application.uid else { return Ok(()) };
    let organisation = application.organisation_id.as_str();
    let key = params![organisation, uid.as_str(), Uuid::from(application.id)];
    match tx.one(sql::APPLICATION_UID_TAKEN, key, |row| row.int()).await? {
        Some(_) => Err(Error::new(Kind::Conflict, "an application with this uid exists")),
        None => Ok(()),
    }
}

pub(super) async fn update_application(
    tx: &Tx,
    application: &Application,
    read_at: Timestamp,
) -> Result<()> {
    let id = Uuid::from(application.id);
    match tx.one(sql::APPLICATION_VERSION, params![id], |row| row.time()).await? {
        None => return Err(Error::new(Kind::NotFound, "no such application")),
        Some(updated_at) if updated_at != read_at => return Err(stale("application")),
        Some(_) => {}
    }
    check_application_uid(tx, application).await?;
    let row = params![
        id,
        application.uid.as_ref().map(|uid| uid.as_str()),
        application.name.as_str(),
        application.throttle_rate.map(i64::from),
        rows::json(&application.metadata)?,
        application.updated_at.as_micros(),
    ];
    tx.run(sql::APPLICATION_UPDATE, row).await.map(drop)
}

fn stale(what: &str) -> Error {
    Error::new(Kind::Stale, format!("the {what} was changed by somebody else meanwhile"))
}

pub(super) async fn delete_application(tx: &Tx, id: ApplicationId, now: Timestamp) -> Result<()> {
    let id = Uuid::from(id);
    let key = params![id, now.as_micros()];
    if tx.run(sql::APPLICATION_DELETE, key).await? == 0 {
        return Err(Error::new(Kind::NotFound, "no such application"));
    }
    tx.run(sql::APPLICATION_ENDPOINTS_DELETE, key).await?;
    tx.run(sql::APPLICATION_LANES_DELETE, params![id]).await.map(drop)
}

pub(super) async fn create_endpoint(tx: &Tx, endpoint: &Endpoint) -> Result<()> {
    let application = Uuid::from(endpoint.application_id);
    let of = params![application];
    if tx.one(sql::APPLICATION_VERSION, of, |row| row.int()).await?.is_none() {
        return Err(Error::new(Kind::NotFound, "no such application"));
    }
    let count: usize = tx.get(sql::ENDPOINT_COUNT, of, |row| row.number()).await?;
    if count >= ENDPOINTS_PER_APPLICATION_MAX {
        let text = format!("an application has at most {ENDPOINTS_PER_APPLICATION_MAX} endpoints");
        return Err(Error::new(Kind::Limit, text));
    }
    check_endpoint_uid(tx, endpoint).await?;
    let created = tx.run(sql::ENDPOINT_INSERT, &EndpointRow::new(endpoint)?.params()).await?;
    changed(created, Kind::Conflict, "an endpoint with this id exists")?;
    let state = match endpoint.disabled {
        None => LaneState::InUse,
        Some(_) => LaneState::Disabled,
    };
    let lane = params![Uuid::from(endpoint.id), application, state.column()];
    tx.run(sql::LANE_INSERT, lane).await?;
    tx.run(lane_sql::ROUTES_RAISE, of).await.map(drop)
}

async fn check_endpoint_uid(tx: &Tx, endpoint: &Endpoint) -> Result<()> {
    let Some(uid) = &endpoint.uid else { return Ok(()) };
    let application = Uuid::from(endpoint.application_id);
    let key = params![application, uid.as_str(), Uuid::from(endpoint.id)];
    match tx.one(sql::ENDPOINT_UID_TAKEN, key, |row| row.int()).await? {
        Some(_) => Err(Error::new(Kind::Conflict, "an endpoint with this uid exists")),
        None => Ok(()),
    }
}

/// An endpoint as the values of its row.
struct EndpointRow<'e> {
    id: Uuid,
    uid: Option<&'e str>,
    url: &'e str,
    description: &'e str,
    disabled: Option<&'static str>,
    event_types: Option<String>,
    channels: Option<String>,
    throttle_rate: Option<i64>,
    version: i64,
    metadata: String,
    headers: String,
    secrets: String,
    policy: String,
    updated_at: i64,
    application_id: Uuid,
    created_at: i64,
}

/// Of the values of an endpoint's row, the first ones are those that change.
const ENDPOINT_CHANGES: usize = 14;

impl<'e> EndpointRow<'e> {
    fn new(endpoint: &'e Endpoint) -> Result<Self> {
        Ok(Self {
            id: endpoint.id.into(),
            uid: endpoint.uid.as_ref().map(|uid| uid.as_str()),
            url: endpoint.url.as_str(),
            description: &endpoint.description,
            disabled: endpoint.disabled.map(rows::disabled_text),
            event_types: endpoint.event_types.as_ref().map(rows::json).transpose()?,
            channels: endpoint.channels.as_ref().map(rows::json).transpose()?,
            throttle_rate: endpoint.throttle_rate.map(i64::from),
            version: endpoint.version.into(),
            metadata: rows::json(&endpoint.metadata)?,
            headers: rows::headers_json(&endpoint.headers)?,
            secrets: rows::json(&StoredSecrets::of(&endpoint.secrets))?,
            policy: rows::json(&endpoint.policy)?,
            updated_at: endpoint.updated_at.as_micros(),
            application_id: endpoint.application_id.into(),
            created_at: endpoint.created_at.as_micros(),
        })
    }

    fn params(&self) -> Vec<&dyn Bind> {
        params![
            self.id,
            self.uid,
            self.url,
            self.description,
            self.disabled,
            self.event_types,
            self.channels,
            self.throttle_rate,
            self.version,
            self.metadata,
            self.headers,
            self.secrets,
            self.policy,
            self.updated_at,
            self.application_id,
            self.created_at,
        ]
        .to_vec()
    }
}

/// `false`: the endpoint is to be enabled, but what waited when it was disabled is not all held.
pub(super) async fn update_endpoint(
    tx: &Tx,
    endpoint: &Endpoint,
    read_at: Timestamp,
) -> Result<bool> {
    let id = Uuid::from(endpoint.id);
    let Some((updated_at, was_disabled, application)) = lock_endpoint(tx, endpoint.id).await?
    else {
        return Err(Error::new(Kind::NotFound, "no such endpoint"));
    };
    if updated_at != read_at {
        return Err(stale("endpoint"));
    }
    check_endpoint_uid(tx, endpoint).await?;
    let disabled = endpoint.disabled.is_some();
    let key = params![id];
    let sweeping = tx.one(sql::LANE_SWEEPING, key, |row| row.flag()).await?;
    if was_disabled && !disabled && sweeping == Some(true) {
        return Ok(false);
    }
    let row = EndpointRow::new(endpoint)?;
    tx.run(sql::ENDPOINT_UPDATE, &row.params()[..ENDPOINT_CHANGES]).await?;
    match (was_disabled, disabled) {
        (false, true) => close_lane(tx, id, LaneState::Disabled, 1).await?,
        (true, false) => tx.run(sql::LANE_OPEN, key).await?,
        _ => tx.run(sql::LANE_TOUCH, key).await?,
    };
    tx.run(lane_sql::ROUTES_RAISE, params![Uuid::from(application)]).await?;
    Ok(true)
}

/// When an endpoint was changed last, whether it is disabled and whose it is; nobody changes it
/// until we are done.
async fn lock_endpoint(
    tx: &Tx,
    id: EndpointId,
) -> Result<Option<(Timestamp, bool, ApplicationId)>> {
    let key = params![Uuid::from(id)];
    tx.one(sql::ENDPOINT_APPLICATION_LOCK, key, |_| Ok(())).await?;
    tx.one(sql::ENDPOINT_VERSION, key, |row| Ok((row.time()?, row.flag()?, row.id()?))).await
}

/// `sweep`: what a step has to do with what waits.
async fn close_lane(tx: &Tx, id: Uuid, state: LaneState, sweep: i64) -> Result<u64> {
    tx.run(lane_sql::LANE_CLOSE, params![id, state.column(), sweep]).await
}

pub(super) async fn delete_endpoint(tx: &Tx, id: EndpointId, now: Timestamp) -> Result<()> {
    let Some((_, _, application)) = lock_endpoint(tx, id).await? else {
        return Err(Error::new(Kind::NotFound, "no such endpoint"));
    };
    let id = Uuid::from(id);
    close_lane(tx, id, LaneState::Deleted, 2).await?;
    tx.run(sql::ENDPOINT_DELETE, params![id, now.as_micros()]).await?;
    tx.run(lane_sql::ROUTES_RAISE, params![Uuid::from(application)]).await.map(drop)
}

pub(super) async fn begin_request(
    tx: &Tx,
    key: &IdempotencyKey,
    now: Timestamp,
    takeover_at: Timestamp,
) -> Result<Begun> {
    // One that nobody finishes may be forgotten once it may be taken over.
    let takeover_at = takeover_at.as_micros();
    let row = params![&key.key_hash[..], &key.request_hash[..], takeover_at, takeover_at];
    for _ in 0..LOOKS_MAX {
        if tx.run(sql::REQUEST_INSERT, row).await? > 0 {
            return Ok(Begun::Fresh);
        }
        let find = params![&key.key_hash[..]];
        match tx.one(sql::REQUEST_FIND, find, |row| rows::request(row, key, now)).await? {
            // Gone between our two looks.
            None => {}
            Some(Some(answer)) => return Ok(answer),
            Some(None) => {
                tx.run(sql::REQUEST_BEGIN, row).await?;
                return Ok(Begun::Fresh);
            }
        }
    }
    Err(Error::new(Kind::Unavailable, "too many make and drop the same request at once"))
}
