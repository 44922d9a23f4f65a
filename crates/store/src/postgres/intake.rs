//! Accepts what applications enqueued in transactions of their own (`posthaste.enqueue`).
//!
//! **Invariant:** a row goes in the transaction that accepts its message, so each is accepted once.
//!
//! **Invariant:** none goes without a trace: one that cannot be accepted stays, with the reason.

use super::PostgresStore;
use super::accept::weigh;
use super::catalog::read_routes;
use super::db::{Column, Tx, Uuid, params};
use super::upkeep::sql;
use crate::outbox::{Acceptance, Accepted, NewDelivery, Start};
use crate::rows::Fields;
use crate::upkeep::{Refused, TakenIn};
use crate::{Error, Kind, Result};
use bytes::Bytes;
use posthaste_core::event::{EventId, EventTypeName};
use posthaste_core::id::{ApplicationId, MessageId};
use posthaste_core::limits::PAYLOAD_KEPT_FOR_DAYS;
use posthaste_core::message::Message;
use posthaste_core::routing::Routes;
use posthaste_core::time::Timestamp;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Messages taken in together, and bytes of their payloads.
const BATCH_MAX: usize = 256;
const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;
pub(super) const KEPT_FOR: Duration = Duration::from_secs(PAYLOAD_KEPT_FOR_DAYS as u64 * 86_400);

const NO_APPLICATION: &str = "the application was deleted";
const EVENT_ID_TAKEN: &str = "the application has another message with this event id";
const NOT_READABLE: &str = "the row is not what posthaste.enqueue writes";
const NOT_STORABLE: &str = "the database refused the message";

impl PostgresStore {
    /// A batch, or if something is wrong with one of it, the next alone.
    pub(super) async fn take_in_batch(&self, now: Timestamp) -> Result<TakenIn> {
        match self.take_in_some(BATCH_MAX, now).await {
            Err(error) if error.kind() == Kind::Internal => {}
            done => return done,
        }
        let odd = Mutex::new(None);
        let done = transact!(self.core, Indexed, |tx| {
            let done = take_in(tx, 1, now, |id| set(&odd, Some(id))).await;
            if !tx.refused_data() {
                // Not this message's fault, so it is not this message that is refused.
                set(&odd, None);
            }
            done
        });
        let odd = odd.into_inner().unwrap_or_else(PoisonError::into_inner);
        match (done, odd) {
            (Err(error), Some(id)) if error.kind() == Kind::Internal => {
                tracing::warn!(%error, message_id = %id, "store.message_not_taken_in");
                transact!(self.core, Write, |tx| refuse_one(tx, id).await)
            }
            (done, _) => done,
        }
    }

    async fn take_in_some(&self, count: usize, now: Timestamp) -> Result<TakenIn> {
        transact!(self.core, Indexed, |tx| take_in(tx, count, now, |_| ()).await)
    }
}

fn set(cell: &Mutex<Option<MessageId>>, id: Option<MessageId>) {
    *cell.lock().unwrap_or_else(PoisonError::into_inner) = id;
}

/// Takes in and commits. `takes` hears of each message before anything is done with it.
async fn take_in(
    tx: &Tx,
    count: usize,
    now: Timestamp,
    takes: impl Fn(MessageId),
) -> Result<TakenIn> {
    let limits = params![count as i64, BATCH_BYTES_MAX as i64];
    let rows = tx.all(sql::ENQUEUED_TAKE, limits, |row| Enqueued::read(row, now)).await?;
    let mut batch = Batch::default();
    let mut routes: BTreeMap<ApplicationId, Option<Arc<Routes>>> = BTreeMap::new();
    rows.iter().for_each(|row| takes(row.id()));
    for row in rows {
        let message = match row {
            Enqueued::Message(message) => message,
            Enqueued::Unreadable(id) => {
                batch.refuse(id, NOT_READABLE);
                continue;
            }
        };
        let application = message.application_id;
        let known = match routes.get(&application) {
            Some(known) => known.clone(),
            None => {
                let read = read_routes(tx, application).await?;
                routes.insert(application, read.clone());
                read
            }
        };
        match known.as_deref() {
            Some(routes) => batch.messages.push(acceptance(message, routes)),
            None => batch.refuse(message.id, NO_APPLICATION),
        }
    }
    let weighed = weigh(tx, &batch.messages).await?;
    let mut gone: Vec<Uuid> = Vec::new();
    for (acceptance, answer) in batch.messages.iter().zip(weighed.answers()) {
        let message = &acceptance.message;
        match answer {
            Accepted::Committed => gone.push(message.id.into()),
            // Between two statements here; it goes the next time.
            Accepted::RoutesChanged => {}
            Accepted::EventIdTaken(_) => batch.refused.push((message.id, EVENT_ID_TAKEN)),
            Accepted::NoApplication => batch.refused.push((message.id, NO_APPLICATION)),
            Accepted::Repeated(_) | Accepted::KeyReused => {
                return Err(Error::new(Kind::Internal, "an enqueued message had a key"));
            }
        }
    }
    let taken = TakenIn {
        accepted: gone.len(),
        due: weighed.has_due(),
        refused: batch.refused.iter().map(|(id, why)| Refused { message_id: *id, why }).collect(),
    };
    let delete = async {
        if gone.is_empty() {
            return Ok(());
        }
        tx.run(sql::ENQUEUED_DELETE, params![Column(gone)]).await.map(drop)
    };
    let rest = async { tokio::try_join!(biased; delete, refuse(tx, &batch.refused)).map(drop) };
    weighed.write(tx, rest).await?;
    Ok(taken)
}

#[derive(Default)]
struct Batch {
    messages: Vec<Acceptance>,
    refused: Vec<(MessageId, &'static str)>,
}

impl Batch {
    fn refuse(&mut self, id: MessageId, why: &'static str) {
        self.refused.push((id, why));
    }
}

enum Enqueued {
    Message(Message),
    Unreadable(MessageId),
}

impl Enqueued {
    fn id(&self) -> MessageId {
        match self {
            Self::Message(message) => message.id,
            Self::Unreadable(id) => *id,
        }
    }

    /// message_id, application_id, event_id, event_type, channels, payload
    fn read(row: &mut Fields<'_>, now: Timestamp) -> Result<Self> {
        let id: MessageId = row.id()?;
        Ok(Self::message(id, row, now).map_or(Self::Unreadable(id), Self::Message))
    }

    fn message(id: MessageId, row: &mut Fields<'_>, now: Timestamp) -> Result<Message> {
        // The server's clock made the id, and may be ahead of ours.
        let created_at = id.timestamp().min(now);
        Ok(Message {
            id,
            application_id: row.id()?,
            event_id: row.opt_name(EventId::new)?,
            event_type: row.name(EventTypeName::new)?,
            channels: row.opt_json()?.unwrap_or_default(),
            payload: Some(Bytes::copy_from_slice(row.blob()?)),
            created_at,
            expires_at: created_at.after(KEPT_FOR),
        })
    }
}

/// Routed as the API does it; whichever worker has room sends it.
fn acceptance(message: Message, routes: &Routes) -> Acceptance {
    let deliveries = routes.matching(&message).map(|endpoint| NewDelivery {
        endpoint_id: endpoint.id,
        start: if endpoint.disabled.is_some() { Start::Held } else { Start::Due },
    });
    Acceptance {
        deliveries: deliveries.collect(),
        routes_version: routes.version,
        idempotency: None,
        lease: None,
        message: Arc::new(message),
    }
}

async fn refuse(tx: &Tx, refused: &[(MessageId, &'static str)]) -> Result<()> {
    if refused.is_empty() {
        return Ok(());
    }
    let ids: Column<Uuid> = refused.iter().map(|(id, _)| Uuid::from(*id)).collect();
    let why: Column<&str> = refused.iter().map(|(_, why)| *why).collect();
    tx.run(sql::ENQUEUED_REFUSE, params![ids, why]).await.map(drop)
}

/// Unless somebody else has dealt with it meanwhile.
async fn refuse_one(tx: &Tx, id: MessageId) -> Result<TakenIn> {
    let why = NOT_STORABLE;
    let row = params![Column(vec![Uuid::from(id)]), Column(vec![why])];
    let count = tx.run(sql::ENQUEUED_REFUSE, row).await?;
    let refused = (count > 0).then_some(Refused { message_id: id, why });
    Ok(TakenIn { refused: refused.into_iter().collect(), ..TakenIn::default() })
}
