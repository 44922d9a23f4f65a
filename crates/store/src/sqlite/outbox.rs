//! `Outbox`: accepting messages, giving leases back, resending; claims and records are next door.

use super::SqliteStore;
use super::claim::claim;
use super::lanes::sql;
use super::lists;
use super::record::record;
use super::writer::{Tx, Urgency};
use crate::outbox::{
    Acceptance, Accepted, Claim, Claimed, IdempotencyKey, NewDelivery, Outbox, RecordBatch,
    Recorded, Resent, Start,
};
use crate::rows;
use crate::{Error, Kind, Result};
use async_trait::async_trait;
use posthaste_core::delivery::{DeliveryKey, LeasedDelivery};
use posthaste_core::id::{ApplicationId, MessageId};
use posthaste_core::limits::{IDEMPOTENCY_KEPT_FOR, RECORD_BATCH_MAX};
use posthaste_core::time::Timestamp;
use rusqlite::params;

#[async_trait]
impl Outbox for SqliteStore {
    async fn accept(&self, acceptance: Acceptance) -> Result<Accepted> {
        let application = acceptance.message.application_id;
        let operations = 1 + acceptance.deliveries.len();
        let work = move |tx: &mut Tx<'_>| accept(tx, &acceptance);
        let accepted = self.writer.call(Urgency::Now, operations, work).await?;
        if matches!(accepted, Accepted::RoutesChanged | Accepted::NoApplication) {
            self.cache.forget_routes(application);
        }
        Ok(accepted)
    }

    async fn claim(&self, request: Claim) -> Result<Claimed> {
        let operations = request.deliveries_max;
        self.writer.call(Urgency::Now, operations, move |tx| claim(tx, &request)).await
    }

    async fn record(&self, batch: RecordBatch) -> Result<Recorded> {
        let operations = batch.records.len();
        if operations > RECORD_BATCH_MAX {
            let text = format!("at most {RECORD_BATCH_MAX} records go into one batch");
            return Err(Error::new(Kind::Limit, text));
        }
        let recorded =
            self.writer.call(Urgency::Lazy, operations, move |tx| record(tx, &batch)).await?;
        if recorded.events.iter().any(|event| disables(event.event)) {
            self.cache.forget();
        }
        Ok(recorded)
    }

    async fn give_back(&self, leases: Vec<LeasedDelivery>, now: Timestamp) -> Result<()> {
        let operations = leases.len();
        self.writer.call(Urgency::Now, operations, move |tx| give_back(tx, &leases, now)).await
    }

    async fn resend(&self, key: DeliveryKey, now: Timestamp) -> Result<Resent> {
        self.writer.call(Urgency::Now, 1, move |tx| resend(tx, key, now)).await
    }
}

const fn disables(event: posthaste_core::lane::Event) -> bool {
    use posthaste_core::lane::Event;
    matches!(event, Event::Gone | Event::Exhausted { .. })
}

fn accept(tx: &mut Tx<'_>, acceptance: &Acceptance) -> Result<Accepted> {
    let message = &acceptance.message;
    if let Some(key) = &acceptance.idempotency
        && let Some(known) = repeated(tx, key, message.created_at)?
    {
        return Ok(known);
    }
    match routes_version(tx, message.application_id)? {
        None => return Ok(Accepted::NoApplication),
        Some(version) if version != acceptance.routes_version => {
            return Ok(Accepted::RoutesChanged);
        }
        Some(_) => {}
    }
    if let Some(event_id) = &message.event_id {
        let key = params![message.application_id.as_bytes(), event_id.as_str()];
        if let Some(taken) = tx.db.one(sql::EVENT_FIND, key, |row| row.id::<MessageId>())? {
            return Ok(Accepted::EventIdTaken(taken));
        }
    }
    let channels = match message.channels.as_slice() {
        [] => None,
        channels => Some(rows::json(channels)?),
    };
    tx.db.run(
        sql::MESSAGE_INSERT,
        params![
            message.application_id.as_bytes(),
            message.id.as_bytes(),
            message.event_id.as_ref().map(|id| id.as_str()),
            message.event_type.as_str(),
            channels,
            message.payload.as_deref(),
            message.created_at.as_micros(),
            message.expires_at.as_micros(),
        ],
    )?;
    let seq = tx.db.last_seq();
    for delivery in &acceptance.deliveries {
        insert(tx, acceptance, seq, delivery)?;
    }
    if let Some(key) = &acceptance.idempotency {
        let expires_at = message.created_at.after(IDEMPOTENCY_KEPT_FOR).as_micros();
        let id = message.id.as_bytes();
        tx.db.run(
            sql::IDEMPOTENCY_ACCEPT,
            params![key.key_hash, key.request_hash, id, expires_at],
        )?;
    }
    Ok(Accepted::Committed)
}

/// What became of an earlier request with the key, if it is still remembered.
fn repeated(tx: &Tx<'_>, key: &IdempotencyKey, now: Timestamp) -> Result<Option<Accepted>> {
    tx.db
        .one(sql::IDEMPOTENCY_FIND, [key.key_hash], |row| {
            let same = row.blob()? == key.request_hash;
            let _state = row.int()?;
            let message: Option<MessageId> = row.opt_id()?;
            let (_status, _body, _takeover_at) = (row.opt_int()?, row.opt_blob()?, row.opt_int()?);
            if row.time()? <= now {
                return Ok(None);
            }
            Ok(Some(match message {
                Some(message) if same => Accepted::Repeated(message),
                _ => Accepted::KeyReused,
            }))
        })
        .map(Option::flatten)
}

fn routes_version(tx: &mut Tx<'_>, id: ApplicationId) -> Result<Option<i64>> {
    if let Some(version) = tx.versions.get(&id) {
        return Ok(*version);
    }
    let version = tx.db.one(sql::ROUTES_VERSION, [id.as_bytes()], |row| row.int())?;
    tx.versions.insert(id, version);
    Ok(version)
}

fn insert(
    tx: &mut Tx<'_>,
    acceptance: &Acceptance,
    seq: i64,
    delivery: &NewDelivery,
) -> Result<()> {
    let message = &acceptance.message;
    let accepted_at = message.created_at;
    let lease = match (delivery.start, acceptance.lease) {
        (Start::Leased, Some(lease)) => {
            tx.see_worker(lease.worker_id, accepted_at)?;
            Some(lease)
        }
        (Start::Leased, None) => {
            return Err(Error::new(Kind::Internal, "a leased delivery without a lease"));
        }
        (Start::Due | Start::Held, _) => None,
    };
    let state = match delivery.start {
        Start::Due => rows::WAITING,
        Start::Leased => rows::LEASED,
        Start::Held => rows::HELD,
    };
    tx.db.run(
        sql::DELIVERY_INSERT,
        params![
            delivery.endpoint_id.as_bytes(),
            message.id.as_bytes(),
            message.application_id.as_bytes(),
            state,
            accepted_at.as_micros(),
            i64::from(lease.is_some()),
            lease.as_ref().map(|lease| lease.worker_id.as_bytes()),
            lease.map(|lease| lease.until.as_micros()),
            seq,
        ],
    )?;
    if delivery.start == Start::Due {
        tx.pull_lane(delivery.endpoint_id, accepted_at)?;
    }
    Ok(())
}

fn give_back(tx: &mut Tx<'_>, leases: &[LeasedDelivery], now: Timestamp) -> Result<()> {
    for leased in leases {
        let Some(open) = tx.open_delivery(leased.key)? else { continue };
        if !open.is_leased(&leased.lease) {
            continue;
        }
        tx.release(leased.key, &open, now, false)?;
    }
    Ok(())
}

fn resend(tx: &mut Tx<'_>, key: DeliveryKey, now: Timestamp) -> Result<Resent> {
    lists::complete(&tx.db)?;
    let ids = params![key.endpoint_id.as_bytes(), key.message_id.as_bytes()];
    let found = tx.db.one(sql::RESEND_FIND, ids, |row| {
        let application: ApplicationId = row.id()?;
        Ok((application, row.flag()?, row.flag()?, row.time()?))
    })?;
    let Some((application, disabled, has_payload, accepted_at)) = found else {
        return Err(Error::new(Kind::NotFound, "no such message or endpoint"));
    };
    if !has_payload {
        return Err(Error::new(Kind::Limit, "the message's payload is gone"));
    }
    let open = tx.open_delivery(key)?;
    if open.as_ref().is_some_and(|open| open.state == rows::LEASED) {
        return Ok(Resent::InFlight);
    }
    if disabled {
        return Ok(Resent::EndpointDisabled);
    }
    let now_micros = now.as_micros();
    if open.is_some() {
        let (endpoint, message) = (key.endpoint_id.as_bytes(), key.message_id.as_bytes());
        tx.db.run(sql::RESEND_OPEN, params![endpoint, message, now_micros])?;
    } else {
        tx.db.run(
            sql::RESEND_INSERT,
            params![
                key.endpoint_id.as_bytes(),
                key.message_id.as_bytes(),
                application.as_bytes(),
                now_micros,
                accepted_at.as_micros(),
            ],
        )?;
    }
    tx.pull_lane(key.endpoint_id, now)?;
    Ok(Resent::Due)
}
