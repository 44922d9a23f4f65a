//! `Outbox`: giving leases back and resending; accepts, claims and records are next door.

use super::PostgresStore;
use super::claim::claim;
use super::db::{Tx, Uuid, params};
use super::lanes::{micros, sql};
use super::record::record;
use crate::outbox::{Acceptance, Accepted, Claim, Claimed, Outbox, RecordBatch, Recorded, Resent};
use crate::rows;
use crate::{Error, Kind, Result};
use async_trait::async_trait;
use posthaste_core::delivery::{DeliveryKey, Lease, LeasedDelivery};
use posthaste_core::id::ApplicationId;
use posthaste_core::lane::Event;
use posthaste_core::limits::RECORD_BATCH_MAX;
use posthaste_core::time::Timestamp;
use std::collections::BTreeMap;

#[async_trait]
impl Outbox for PostgresStore {
    async fn accept(&self, acceptance: Acceptance) -> Result<Accepted> {
        let application = acceptance.message.application_id;
        let accepted = self.writer.accept(acceptance).await?;
        if matches!(accepted, Accepted::RoutesChanged | Accepted::NoApplication) {
            self.cache.forget_routes(application);
        }
        Ok(accepted)
    }

    async fn claim(&self, request: Claim) -> Result<Claimed> {
        let core = &*self.core;
        transact!(core, Indexed, |tx| claim(core, tx, &request).await)
    }

    async fn record(&self, batch: RecordBatch) -> Result<Recorded> {
        if batch.records.len() > RECORD_BATCH_MAX {
            let text = format!("at most {RECORD_BATCH_MAX} records go into one batch");
            return Err(Error::new(Kind::Limit, text));
        }
        let recorded = match self.write_records(&batch, false).await? {
            Some(recorded) => recorded,
            // An endpoint is disabled, which changes routes: those are locked before lanes.
            None => self.write_records(&batch, true).await?.ok_or_else(|| {
                Error::new(Kind::Internal, "records were left out under the lock")
            })?,
        };
        let disables = |event: Event| matches!(event, Event::Gone | Event::Exhausted { .. });
        if recorded.events.iter().any(|event| disables(event.event)) {
            self.cache.forget();
        }
        Ok(recorded)
    }

    async fn give_back(&self, leases: Vec<LeasedDelivery>, now: Timestamp) -> Result<()> {
        let held: BTreeMap<DeliveryKey, Lease> =
            leases.iter().map(|leased| (leased.key, leased.lease)).collect();
        let keys: Vec<DeliveryKey> = held.keys().copied().collect();
        transact!(self.core, Write, |tx| {
            tx.release(&keys, now, false, |key, open| {
                held.get(key).is_some_and(|lease| {
                    open.lease_number == lease.number && open.lease_worker == Some(lease.worker_id)
                })
            })
            .await
        })
        .map(drop)
    }

    async fn resend(&self, key: DeliveryKey, now: Timestamp) -> Result<Resent> {
        transact!(self.core, Write, |tx| resend(tx, key, now).await)
    }
}

impl PostgresStore {
    async fn write_records(&self, batch: &RecordBatch, lock: bool) -> Result<Option<Recorded>> {
        transact!(self.core, Indexed, |tx| record(tx, batch, lock).await)
    }
}

async fn resend(tx: &Tx, key: DeliveryKey, now: Timestamp) -> Result<Resent> {
    let (endpoint, message) = (Uuid::from(key.endpoint_id), Uuid::from(key.message_id));
    tx.lanes([key.endpoint_id]).await?;
    let found = tx
        .one(sql::RESEND_FIND, params![endpoint, message], |row| {
            let application: ApplicationId = row.id()?;
            Ok((application, row.flag()?, row.flag()?, row.time()?))
        })
        .await?;
    let Some((application, disabled, has_payload, accepted_at)) = found else {
        return Err(Error::new(Kind::NotFound, "no such message or endpoint"));
    };
    if !has_payload {
        return Err(Error::new(Kind::Limit, "the message's payload is gone"));
    }
    let open = tx.open_deliveries(&[key]).await?.remove(&key);
    if open.as_ref().is_some_and(|open| open.state == rows::LEASED) {
        return Ok(Resent::InFlight);
    }
    if disabled {
        return Ok(Resent::EndpointDisabled);
    }
    if open.is_some() {
        tx.run(sql::RESEND_OPEN, params![endpoint, message, micros(now)]).await?;
    } else {
        let application = Uuid::from(application);
        let row = params![endpoint, message, application, micros(now), micros(accepted_at)];
        tx.run(sql::RESEND_INSERT, row).await?;
    }
    tx.pull_lanes(&BTreeMap::from([(key.endpoint_id, now)])).await?;
    Ok(Resent::Due)
}
