//! What a change of the catalogue checks and writes.
//!
//! A change looks for what could be in its way before it writes anything, so a refused one leaves
//! nothing behind in the transaction that it shares.

use super::catalog::sql;
use super::lanes::sql as lane_sql;
use super::writer::Tx;
use crate::catalog::Begun;
use crate::lanes::LaneState;
use crate::outbox::IdempotencyKey;
use crate::rows::{self, StoredSecrets};
use crate::{Error, Kind, Result};
use posthaste_core::endpoint::{Application, Endpoint};
use posthaste_core::id::{ApplicationId, EndpointId};
use posthaste_core::limits::ENDPOINTS_PER_APPLICATION_MAX;
use posthaste_core::time::Timestamp;
use rusqlite::{params, types::Value};

pub(super) fn changed(rows: usize, otherwise: Kind, why: &str) -> Result<()> {
    if rows > 0 { Ok(()) } else { Err(Error::new(otherwise, why)) }
}

pub(super) fn create_application(tx: &mut Tx<'_>, application: &Application) -> Result<()> {
    check_application_uid(tx, application)?;
    let created = tx.db.run(
        sql::APPLICATION_INSERT,
        params![
            application.id.as_bytes(),
            application.organisation_id.as_str(),
            application.uid.as_ref().map(|uid| uid.as_str()),
            application.name,
            application.throttle_rate,
            rows::json(&application.metadata)?,
            application.created_at.as_micros(),
            application.updated_at.as_micros(),
        ],
    )?;
    changed(created, Kind::Conflict, "an application with this id exists")
}

fn check_application_uid(tx: &Tx<'_>, application: &Application) -> Result<()> {
    let Some(uid) = &application.uid else { return Ok(()) };
    let key =
        params![application.organisation_id.as_str(), uid.as_str(), application.id.as_bytes()];
    match tx.db.one(sql::APPLICATION_UID_TAKEN, key, |row| row.int())? {
        Some(_) => Err(Error::new(Kind::Conflict, "an application with this uid exists")),
        None => Ok(()),
    }
}

pub(super) fn update_application(
    tx: &mut Tx<'_>,
    application: &Application,
    read_at: Timestamp,
) -> Result<()> {
    let id = application.id.as_bytes();
    match tx.db.one(sql::APPLICATION_VERSION, [id], |row| row.time())? {
        None => return Err(Error::new(Kind::NotFound, "no such application")),
        Some(updated_at) if updated_at != read_at => return Err(stale("application")),
        Some(_) => {}
    }
    check_application_uid(tx, application)?;
    tx.db.run(
        sql::APPLICATION_UPDATE,
        params![
            id,
            application.uid.as_ref().map(|uid| uid.as_str()),
            application.name,
            application.throttle_rate,
            rows::json(&application.metadata)?,
            application.updated_at.as_micros(),
        ],
    )?;
    Ok(())
}

fn stale(what: &str) -> Error {
    Error::new(Kind::Stale, format!("the {what} was changed by somebody else meanwhile"))
}

pub(super) fn delete_application(tx: &mut Tx<'_>, id: ApplicationId, now: Timestamp) -> Result<()> {
    let key = params![id.as_bytes(), now.as_micros()];
    if tx.db.run(sql::APPLICATION_DELETE, key)? == 0 {
        return Err(Error::new(Kind::NotFound, "no such application"));
    }
    tx.db.run(sql::APPLICATION_ENDPOINTS_DELETE, params![id.as_bytes(), now.as_micros()])?;
    tx.db.run(sql::APPLICATION_LANES_DELETE, [id.as_bytes()])?;
    Ok(())
}

pub(super) fn create_endpoint(tx: &mut Tx<'_>, endpoint: &Endpoint) -> Result<()> {
    let application = endpoint.application_id.as_bytes();
    if tx.db.one(sql::APPLICATION_VERSION, [application], |row| row.int())?.is_none() {
        return Err(Error::new(Kind::NotFound, "no such application"));
    }
    let count: usize = tx.db.get(sql::ENDPOINT_COUNT, [application], |row| row.number())?;
    if count >= ENDPOINTS_PER_APPLICATION_MAX {
        let text = format!("an application has at most {ENDPOINTS_PER_APPLICATION_MAX} endpoints");
        return Err(Error::new(Kind::Limit, text));
    }
    check_endpoint_uid(tx, endpoint)?;
    let mut row =
        vec![Value::Blob(endpoint.id.as_bytes().to_vec()), Value::Blob(application.to_vec())];
    row.extend(settings(endpoint)?);
    row.push(Value::Integer(endpoint.created_at.as_micros()));
    row.push(Value::Integer(endpoint.updated_at.as_micros()));
    let created = tx.db.run(sql::ENDPOINT_INSERT, rusqlite::params_from_iter(row))?;
    changed(created, Kind::Conflict, "an endpoint with this id exists")?;
    let state = match endpoint.disabled {
        None => LaneState::InUse,
        Some(_) => LaneState::Disabled,
    };
    tx.db.run(sql::LANE_INSERT, params![endpoint.id.as_bytes(), application, state.column()])?;
    tx.db.run(lane_sql::ROUTES_RAISE, [application])?;
    Ok(())
}

fn check_endpoint_uid(tx: &Tx<'_>, endpoint: &Endpoint) -> Result<()> {
    let Some(uid) = &endpoint.uid else { return Ok(()) };
    let key = params![endpoint.application_id.as_bytes(), uid.as_str(), endpoint.id.as_bytes()];
    match tx.db.one(sql::ENDPOINT_UID_TAKEN, key, |row| row.int())? {
        Some(_) => Err(Error::new(Kind::Conflict, "an endpoint with this uid exists")),
        None => Ok(()),
    }
}

/// What an owner sets: uid, url, description, disabled, event_types, channels, throttle_rate,
/// version, metadata, headers, secrets, policy.
fn settings(endpoint: &Endpoint) -> Result<Vec<Value>> {
    let text = |text: &str| Value::Text(text.to_owned());
    let or_null = |value: Option<Value>| value.unwrap_or(Value::Null);
    Ok(vec![
        or_null(endpoint.uid.as_ref().map(|uid| text(uid.as_str()))),
        text(endpoint.url.as_str()),
        text(&endpoint.description),
        or_null(endpoint.disabled.map(|reason| text(rows::disabled_text(reason)))),
        or_null(endpoint.event_types.as_ref().map(rows::json).transpose()?.map(Value::Text)),
        or_null(endpoint.channels.as_ref().map(rows::json).transpose()?.map(Value::Text)),
        or_null(endpoint.throttle_rate.map(|rate| Value::Integer(rate.into()))),
        Value::Integer(endpoint.version.into()),
        Value::Text(rows::json(&endpoint.metadata)?),
        Value::Text(rows::headers_json(&endpoint.headers)?),
        Value::Text(rows::json(&StoredSecrets::of(&endpoint.secrets))?),
        Value::Text(rows::json(&endpoint.policy)?),
    ])
}

/// `false`: the endpoint is to be enabled, but what waited when it was disabled is not all held.
pub(super) fn update_endpoint(
    tx: &mut Tx<'_>,
    endpoint: &Endpoint,
    read_at: Timestamp,
) -> Result<bool> {
    let id = endpoint.id.as_bytes();
    let found = tx.db.one(sql::ENDPOINT_VERSION, [id], |row| {
        Ok((row.time()?, row.flag()?, row.id::<ApplicationId>()?))
    })?;
    let Some((updated_at, was_disabled, application)) = found else {
        return Err(Error::new(Kind::NotFound, "no such endpoint"));
    };
    if updated_at != read_at {
        return Err(stale("endpoint"));
    }
    check_endpoint_uid(tx, endpoint)?;
    let disabled = endpoint.disabled.is_some();
    if was_disabled && !disabled && tx.lane(endpoint.id)?.is_some_and(|lane| lane.sweeping) {
        return Ok(false);
    }
    let mut row = vec![Value::Blob(id.to_vec())];
    row.extend(settings(endpoint)?);
    row.push(Value::Integer(endpoint.updated_at.as_micros()));
    tx.db.run(sql::ENDPOINT_UPDATE, rusqlite::params_from_iter(row))?;
    match (was_disabled, disabled) {
        (false, true) => {
            tx.db.run(lane_sql::LANE_CLOSE, params![id, LaneState::Disabled.column(), 1])?
        }
        (true, false) => tx.db.run(sql::LANE_OPEN, [id])?,
        _ => tx.db.run(sql::LANE_TOUCH, [id])?,
    };
    tx.db.run(lane_sql::ROUTES_RAISE, [application.as_bytes()])?;
    Ok(true)
}

pub(super) fn delete_endpoint(tx: &mut Tx<'_>, id: EndpointId, now: Timestamp) -> Result<()> {
    let found = tx.db.one(sql::ENDPOINT_VERSION, [id.as_bytes()], |row| {
        let (_updated_at, _disabled) = (row.time()?, row.flag()?);
        row.id::<ApplicationId>()
    })?;
    let Some(application) = found else {
        return Err(Error::new(Kind::NotFound, "no such endpoint"));
    };
    tx.db.run(sql::ENDPOINT_DELETE, params![id.as_bytes(), now.as_micros()])?;
    let state = LaneState::Deleted.column();
    tx.db.run(lane_sql::LANE_CLOSE, params![id.as_bytes(), state, 2])?;
    tx.db.run(lane_sql::ROUTES_RAISE, [application.as_bytes()])?;
    Ok(())
}

pub(super) fn begin_request(
    tx: &mut Tx<'_>,
    key: &IdempotencyKey,
    now: Timestamp,
    takeover_at: Timestamp,
) -> Result<Begun> {
    let find = |row: &mut rows::Fields<'_>| rows::request(row, key, now);
    let known = tx.db.one(lane_sql::IDEMPOTENCY_FIND, [key.key_hash], find)?;
    if let Some(answer) = known.flatten() {
        return Ok(answer);
    }
    // One that nobody finishes may be forgotten once it may be taken over.
    let takeover_at = takeover_at.as_micros();
    let row = params![key.key_hash, key.request_hash, takeover_at, takeover_at];
    tx.db.run(sql::REQUEST_BEGIN, row)?;
    Ok(Begun::Fresh)
}
