//! Accepting a batch: what is known is read in one round trip, what is new is written in another.
//!
//! Each message is decided about as if those before it in the batch were committed already.

use super::db::{Column, Tx, Uuid, params};
use super::lanes::{micros, sql};
use crate::outbox::{Acceptance, Accepted, IdempotencyKey, LeaseTerms, NewDelivery, Start};
use crate::rows;
use crate::{Error, Kind, Result};
use posthaste_core::id::{ApplicationId, EndpointId, MessageId, WorkerId};
use posthaste_core::limits::IDEMPOTENCY_KEPT_FOR;
use posthaste_core::message::Message;
use posthaste_core::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// Accepts and commits. Loses a race when a key or an event id is taken meanwhile.
pub(super) async fn accept(tx: &Tx, batch: &[Acceptance]) -> Result<Vec<Accepted>> {
    let weighed = weigh(tx, batch).await?;
    if weighed.new.is_empty() {
        tx.roll_back().await?;
    } else {
        weighed.write(tx, async { Ok(()) }).await?;
    }
    Ok(weighed.answers)
}

/// Finds out what is to become of each message; writes nothing.
pub(super) async fn weigh<'b>(tx: &Tx, batch: &'b [Acceptance]) -> Result<Weighed<'b>> {
    if batch.is_empty() {
        return Ok(Weighed::default());
    }
    let mut known = Known::read(tx, batch).await?;
    let answers: Vec<Accepted> = batch.iter().map(|acceptance| known.decide(acceptance)).collect();
    let new: Vec<&Acceptance> = batch
        .iter()
        .zip(&answers)
        .filter(|(_, answer)| **answer == Accepted::Committed)
        .map(|(acceptance, _)| acceptance)
        .collect();
    let deliveries = Deliveries::of(&new)?;
    Ok(Weighed { answers, new, expired: known.expired, deliveries })
}

/// A batch that is decided about.
#[derive(Default)]
pub(super) struct Weighed<'b> {
    answers: Vec<Accepted>,
    new: Vec<&'b Acceptance>,
    expired: Vec<([u8; 32], Timestamp)>,
    deliveries: Deliveries,
}

impl Weighed<'_> {
    pub fn answers(&self) -> &[Accepted] {
        &self.answers
    }

    /// Whether something will be due.
    pub fn has_due(&self) -> bool {
        !self.deliveries.due.is_empty()
    }

    /// Writes what is new, and `more` with it, and commits.
    pub async fn write(&self, tx: &Tx, more: impl Future<Output = Result<()>>) -> Result<()> {
        let insert_messages = async {
            if self.new.is_empty() { Ok(()) } else { insert_messages(tx, &self.new).await }
        };
        tokio::try_join!(biased;
            insert_keys(tx, &self.new, &self.expired),
            insert_events(tx, &self.new),
            insert_messages,
            self.deliveries.insert(tx),
            tx.pull_lanes(&self.deliveries.due),
            tx.see_workers(&self.deliveries.workers_seen),
            more,
            tx.commit(),
        )
        .map(drop)
    }
}

/// What the batch has to fit to.
struct Known {
    versions: BTreeMap<ApplicationId, i64>,
    keys: BTreeMap<[u8; 32], Key>,
    events: BTreeMap<(ApplicationId, String), MessageId>,
    /// Keys that are used anew, with when.
    expired: Vec<([u8; 32], Timestamp)>,
}

struct Key {
    request_hash: Vec<u8>,
    message: Option<MessageId>,
    expires_at: Timestamp,
}

impl Known {
    async fn read(tx: &Tx, batch: &[Acceptance]) -> Result<Self> {
        let (keys, versions, events) = tokio::try_join!(biased;
            find_keys(tx, batch),
            find_versions(tx, batch),
            find_events(tx, batch),
        )?;
        Ok(Self { versions, keys, events, expired: Vec::new() })
    }

    fn decide(&mut self, acceptance: &Acceptance) -> Accepted {
        let message = &acceptance.message;
        let mut was_expired = false;
        if let Some(key) = &acceptance.idempotency
            && let Some(known) = self.keys.get(&key.key_hash)
        {
            was_expired = known.expires_at <= message.created_at;
            if !was_expired {
                return match known.message {
                    Some(message) if known.request_hash == key.request_hash => {
                        Accepted::Repeated(message)
                    }
                    _ => Accepted::KeyReused,
                };
            }
        }
        match self.versions.get(&message.application_id) {
            None => return Accepted::NoApplication,
            Some(version) if *version != acceptance.routes_version => {
                return Accepted::RoutesChanged;
            }
            Some(_) => {}
        }
        if let Some(event_id) = &message.event_id {
            let key = (message.application_id, event_id.as_str().to_owned());
            if let Some(taken) = self.events.get(&key) {
                return Accepted::EventIdTaken(*taken);
            }
            self.events.insert(key, message.id);
        }
        if let Some(key) = &acceptance.idempotency {
            if was_expired {
                self.expired.push((key.key_hash, message.created_at));
            }
            self.keys.insert(key.key_hash, Key::of(key, message));
        }
        Accepted::Committed
    }
}

impl Key {
    fn of(key: &IdempotencyKey, message: &Message) -> Self {
        Self {
            request_hash: key.request_hash.to_vec(),
            message: Some(message.id),
            expires_at: message.created_at.after(IDEMPOTENCY_KEPT_FOR),
        }
    }
}

async fn find_keys(tx: &Tx, batch: &[Acceptance]) -> Result<BTreeMap<[u8; 32], Key>> {
    let keys = batch.iter().filter_map(|acceptance| acceptance.idempotency.as_ref());
    let keys: Column<&[u8]> = keys.map(|key| &key.key_hash[..]).collect();
    if keys.0.is_empty() {
        return Ok(BTreeMap::new());
    }
    let found = tx
        .all(sql::IDEMPOTENCY_FIND, params![keys], |row| {
            let request_hash = row.blob()?.to_vec();
            let _state = row.int()?;
            let message = row.opt_id()?;
            let (_status, _body, _takeover_at) = (row.opt_int()?, row.opt_blob()?, row.opt_int()?);
            let expires_at = row.time()?;
            let hash = <[u8; 32]>::try_from(row.blob()?);
            let hash = hash.map_err(|_| Error::new(Kind::Internal, "stored data: no hash"))?;
            Ok((hash, Key { request_hash, message, expires_at }))
        })
        .await?;
    Ok(found.into_iter().collect())
}

/// The versions of the routes, which stay what they are until the transaction ends.
async fn find_versions(tx: &Tx, batch: &[Acceptance]) -> Result<BTreeMap<ApplicationId, i64>> {
    let ids: BTreeSet<Uuid> =
        batch.iter().map(|acceptance| acceptance.message.application_id.into()).collect();
    let ids: Column<Uuid> = ids.into_iter().collect();
    let found =
        tx.all(sql::ROUTES_VERSION, params![ids], |row| Ok((row.id()?, row.int()?))).await?;
    Ok(found.into_iter().collect())
}

async fn find_events(
    tx: &Tx,
    batch: &[Acceptance],
) -> Result<BTreeMap<(ApplicationId, String), MessageId>> {
    let (applications, events) = event_ids(batch.iter().map(|acceptance| &*acceptance.message));
    if events.0.is_empty() {
        return Ok(BTreeMap::new());
    }
    let found = tx
        .all(sql::EVENT_FIND, params![applications, events], |row| {
            Ok(((row.id()?, row.text()?.to_owned()), row.id()?))
        })
        .await?;
    Ok(found.into_iter().collect())
}

fn event_ids<'m>(messages: impl Iterator<Item = &'m Message>) -> (Column<Uuid>, Column<&'m str>) {
    let named = messages.filter_map(|message| {
        let event_id = message.event_id.as_ref()?;
        Some((Uuid::from(message.application_id), event_id.as_str()))
    });
    let (applications, events) = named.unzip();
    (Column(applications), Column(events))
}

/// In the order of the keys, so that two batches with the same ones do not wait in a circle.
async fn insert_keys(
    tx: &Tx,
    new: &[&Acceptance],
    expired: &[([u8; 32], Timestamp)],
) -> Result<()> {
    let keyed = new.iter().filter_map(|acceptance| {
        let key = acceptance.idempotency.as_ref()?;
        Some((key.key_hash, (key, &*acceptance.message)))
    });
    let keyed: BTreeMap<[u8; 32], (&IdempotencyKey, &Message)> = keyed.collect();
    if keyed.is_empty() {
        return Ok(());
    }
    let keys: Column<&[u8]> = keyed.values().map(|(key, _)| &key.key_hash[..]).collect();
    let requests: Column<&[u8]> = keyed.values().map(|(key, _)| &key.request_hash[..]).collect();
    let messages: Column<Uuid> =
        keyed.values().map(|(_, message)| Uuid::from(message.id)).collect();
    let expiries: Column<i64> = keyed
        .values()
        .map(|(_, message)| micros(message.created_at.after(IDEMPOTENCY_KEPT_FOR)))
        .collect();
    let expire = async {
        if expired.is_empty() {
            return Ok(0);
        }
        let old: Column<&[u8]> = expired.iter().map(|(key, _)| &key[..]).collect();
        let at: Column<i64> = expired.iter().map(|(_, at)| micros(*at)).collect();
        tx.run(sql::IDEMPOTENCY_EXPIRE, params![old, at]).await
    };
    let insert = async {
        let row = params![keys, requests, messages, expiries];
        tx.run(sql::IDEMPOTENCY_ACCEPT, row).await
    };
    tokio::try_join!(biased; expire, insert).map(drop)
}

async fn insert_events(tx: &Tx, new: &[&Acceptance]) -> Result<()> {
    let mut messages: Vec<&Message> = new
        .iter()
        .map(|acceptance| &*acceptance.message)
        .filter(|message| message.event_id.is_some())
        .collect();
    if messages.is_empty() {
        return Ok(());
    }
    messages.sort_by_key(|message| {
        (message.application_id, message.event_id.as_ref().map(|id| id.as_str()))
    });
    let (applications, events) = event_ids(messages.iter().copied());
    let ids: Column<Uuid> = messages.iter().map(|message| message.id.into()).collect();
    tx.run(sql::EVENT_INSERT, params![applications, events, ids]).await.map(drop)
}

async fn insert_messages(tx: &Tx, new: &[&Acceptance]) -> Result<()> {
    let messages = || new.iter().map(|acceptance| &*acceptance.message);
    let applications: Column<Uuid> =
        messages().map(|message| message.application_id.into()).collect();
    let ids: Column<Uuid> = messages().map(|message| message.id.into()).collect();
    let events: Column<Option<&str>> =
        messages().map(|message| message.event_id.as_ref().map(|id| id.as_str())).collect();
    let types: Column<&str> = messages().map(|message| message.event_type.as_str()).collect();
    let channels = messages().map(|message| match message.channels.as_slice() {
        [] => Ok(None),
        channels => rows::json(channels).map(Some),
    });
    let channels: Column<Option<String>> = Column(channels.collect::<Result<_>>()?);
    let payloads: Column<Option<&[u8]>> =
        messages().map(|message| message.payload.as_deref()).collect();
    let created: Column<i64> = messages().map(|message| micros(message.created_at)).collect();
    let expires: Column<i64> = messages().map(|message| micros(message.expires_at)).collect();
    let row = params![applications, ids, events, types, channels, payloads, created, expires];
    tx.run(sql::MESSAGE_INSERT, row).await.map(drop)
}

/// Columns of the deliveries of a batch.
#[derive(Default)]
struct Deliveries {
    endpoints: Vec<Uuid>,
    messages: Vec<Uuid>,
    applications: Vec<Uuid>,
    states: Vec<i64>,
    accepted: Vec<i64>,
    attempts: Vec<i64>,
    workers: Vec<Option<Uuid>>,
    until: Vec<Option<i64>>,
    /// Those who get leases.
    workers_seen: BTreeMap<WorkerId, Timestamp>,
    /// Lanes that something is due in, with since when.
    due: BTreeMap<EndpointId, Timestamp>,
}

impl Deliveries {
    fn of(new: &[&Acceptance]) -> Result<Self> {
        let mut all = Self::default();
        for acceptance in new {
            for delivery in &acceptance.deliveries {
                all.add(acceptance, delivery)?;
            }
        }
        Ok(all)
    }

    fn add(&mut self, acceptance: &Acceptance, delivery: &NewDelivery) -> Result<()> {
        let message = &acceptance.message;
        let lease: Option<LeaseTerms> = match (delivery.start, acceptance.lease) {
            (Start::Leased, Some(lease)) => Some(lease),
            (Start::Leased, None) => {
                return Err(Error::new(Kind::Internal, "a leased delivery without a lease"));
            }
            (Start::Due | Start::Held, _) => None,
        };
        if let Some(lease) = lease {
            self.workers_seen.entry(lease.worker_id).or_insert(message.created_at);
        }
        self.endpoints.push(delivery.endpoint_id.into());
        self.messages.push(message.id.into());
        self.applications.push(message.application_id.into());
        self.states.push(match delivery.start {
            Start::Due => rows::WAITING,
            Start::Leased => rows::LEASED,
            Start::Held => rows::HELD,
        });
        self.accepted.push(micros(message.created_at));
        self.attempts.push(i64::from(lease.is_some()));
        self.workers.push(lease.map(|lease| lease.worker_id.into()));
        self.until.push(lease.map(|lease| micros(lease.until)));
        if delivery.start == Start::Due {
            let at = self.due.entry(delivery.endpoint_id).or_insert(message.created_at);
            *at = message.created_at.min(*at);
        }
        Ok(())
    }

    async fn insert(&self, tx: &Tx) -> Result<()> {
        if self.endpoints.is_empty() {
            return Ok(());
        }
        let column = |values: &Vec<Uuid>| values.iter().copied().collect::<Column<Uuid>>();
        let numbers = |values: &Vec<i64>| values.iter().copied().collect::<Column<i64>>();
        let workers: Column<Option<Uuid>> = self.workers.iter().copied().collect();
        let until: Column<Option<i64>> = self.until.iter().copied().collect();
        let row = params![
            column(&self.endpoints),
            column(&self.messages),
            column(&self.applications),
            numbers(&self.states),
            numbers(&self.accepted),
            numbers(&self.attempts),
            workers,
            until,
        ];
        tx.run(sql::DELIVERY_INSERT, row).await.map(drop)
    }
}
