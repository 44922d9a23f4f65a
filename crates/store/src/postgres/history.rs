//! `History`: reads only, each on one snapshot.

use super::PostgresStore;
use super::catalog::{bounds, is_storable};
use super::db::{Column, Params, Tx, Uuid, params};
use crate::Result;
use crate::catalog::{Page, Slice};
use crate::history::{
    AttemptFilter, DeadLetterFilter, Delivery, EndpointHealth, History, MessageFilter, Notice,
    Status, StoredAttempt,
};
use crate::page::Walk;
use crate::queries::Directed;
use crate::rows::{self, Fields};
use crate::standing::{self, NOTICES_MAX};
use async_trait::async_trait;
use posthaste_core::delivery::{DeliveryKey, DeliveryState};
use posthaste_core::id::{ApplicationId, AttemptId, EndpointId, MessageId};
use posthaste_core::latency::Sketch;
use posthaste_core::limits::PAGE_PAYLOAD_BYTES_MAX;
use posthaste_core::message::Message;
use posthaste_core::time::Timestamp;

pub(super) mod sql {
    crate::queries::queries! { "../../sql/postgres/history.sql":
        MESSAGE_BY_ID, MESSAGE_BY_EVENT, MESSAGES_PAGE, ATTEMPT_FIND, ATTEMPTS_OF_MESSAGE,
        ATTEMPTS_OF_ENDPOINT, MESSAGES_OF_ENDPOINT, DELIVERIES_OF_MESSAGE, DELIVERY_OPEN,
        DELIVERY_ENDED, DEAD_LETTERS_PAGE, DEAD_LETTERS_OF_ENDPOINT, HEALTH_LANE, HEALTH_WINDOWS,
        HEALTH_WAITING, HEALTH_HELD, STATUS_OPEN, STATUS_OLDEST, STATUS_DEAD, STATUS_TALLY,
        STATUS_WINDOWS, STATUS_LANES, STATUS_WORKERS, NOTICES_ALL, NOTICES_OF_APPLICATION,
    }
}

static MESSAGES: Directed = Directed::new(sql::MESSAGES_PAGE);
static OF_MESSAGE: Directed = Directed::new(sql::ATTEMPTS_OF_MESSAGE);
static OF_ENDPOINT: Directed = Directed::new(sql::ATTEMPTS_OF_ENDPOINT);
static MESSAGES_OF_ENDPOINT: Directed = Directed::new(sql::MESSAGES_OF_ENDPOINT);
static DELIVERIES: Directed = Directed::new(sql::DELIVERIES_OF_MESSAGE);
static DEAD_LETTERS: Directed = Directed::new(sql::DEAD_LETTERS_PAGE);
static DEAD_OF_ENDPOINT: Directed = Directed::new(sql::DEAD_LETTERS_OF_ENDPOINT);

#[async_trait]
impl History for PostgresStore {
    async fn message(&self, application: ApplicationId, name: &str) -> Result<Option<Message>> {
        let application = Uuid::from(application);
        transact!(self.core, Read, |tx| match name.parse::<MessageId>() {
            Ok(id) => {
                let key = params![application, Uuid::from(id)];
                tx.one(sql::MESSAGE_BY_ID, key, rows::message).await
            }
            Err(_) if !is_storable(name) => Ok(None),
            Err(_) => {
                tx.one(sql::MESSAGE_BY_EVENT, params![application, name], rows::message).await
            }
        })
    }

    async fn messages(
        &self,
        application: ApplicationId,
        filter: MessageFilter,
        page: Page<MessageId>,
    ) -> Result<Slice<Message>> {
        let walk = Walk::newest_first(page);
        let filter = Filter::of(&filter);
        let (after, before) = bounds(&walk);
        let key = params![
            Uuid::from(application),
            after,
            before,
            walk.rows(),
            filter.channel,
            filter.event_types,
            filter.before,
            filter.after,
            payload_bytes_max(),
        ];
        let sql = MESSAGES.sql(walk.descending);
        transact!(self.core, Walk, |tx| {
            within_bytes(tx, &walk, sql, key, rows::message, |message| message).await
        })
    }

    async fn attempt(
        &self,
        application: ApplicationId,
        message: MessageId,
        attempt: AttemptId,
    ) -> Result<Option<StoredAttempt>> {
        let key = params![Uuid::from(application), Uuid::from(message), Uuid::from(attempt)];
        transact!(self.core, Read, |tx| tx.one(sql::ATTEMPT_FIND, key, rows::attempt).await)
    }

    async fn attempts_of_message(
        &self,
        application: ApplicationId,
        message: MessageId,
        filter: AttemptFilter,
        page: Page<AttemptId>,
    ) -> Result<Slice<StoredAttempt>> {
        self.attempts(&OF_MESSAGE, message.into(), Some(application), &filter, page).await
    }

    async fn attempts_of_endpoint(
        &self,
        endpoint: EndpointId,
        filter: AttemptFilter,
        page: Page<AttemptId>,
    ) -> Result<Slice<StoredAttempt>> {
        self.attempts(&OF_ENDPOINT, endpoint.into(), None, &filter, page).await
    }

    async fn messages_of_endpoint(
        &self,
        endpoint: EndpointId,
        filter: MessageFilter,
        states: Option<Vec<DeliveryState>>,
        page: Page<MessageId>,
    ) -> Result<Slice<(Message, Delivery)>> {
        let walk = Walk::newest_first(page);
        let filter = Filter::of(&filter);
        let (after, before) = bounds(&walk);
        let states: Option<Column<&str>> =
            states.map(|states| states.into_iter().map(DeliveryState::as_str).collect());
        let key = params![
            Uuid::from(endpoint),
            after,
            before,
            walk.rows(),
            filter.channel,
            filter.event_types,
            filter.before,
            filter.after,
            states,
            payload_bytes_max(),
        ];
        let sql = MESSAGES_OF_ENDPOINT.sql(walk.descending);
        let read = |row: &mut Fields<'_>| Ok((rows::message(row)?, rows::delivery(row)?));
        transact!(self.core, Walk, |tx| {
            within_bytes(tx, &walk, sql, key, read, |(message, _)| message).await
        })
    }

    async fn deliveries_of_message(
        &self,
        application: ApplicationId,
        message: MessageId,
        page: Page<EndpointId>,
    ) -> Result<Slice<Delivery>> {
        let walk = Walk::new(page);
        let (after, before) = bounds(&walk);
        let key = params![Uuid::from(application), after, before, walk.rows(), Uuid::from(message)];
        let sql = DELIVERIES.sql(walk.descending);
        let found = transact!(self.core, Walk, |tx| tx.all(sql, key, rows::delivery).await)?;
        Ok(walk.slice(found))
    }

    async fn delivery(&self, key: DeliveryKey) -> Result<Option<Delivery>> {
        let ids = params![Uuid::from(key.endpoint_id), Uuid::from(key.message_id)];
        transact!(self.core, Read, |tx| {
            let (open, ended) = tokio::join!(
                tx.one(sql::DELIVERY_OPEN, ids, rows::delivery),
                tx.one(sql::DELIVERY_ENDED, ids, rows::delivery),
            );
            Ok(open?.or(ended?))
        })
    }

    async fn dead_letters(
        &self,
        filter: DeadLetterFilter,
        page: Page<MessageId>,
    ) -> Result<Slice<Delivery>> {
        let walk = Walk::newest_first(page);
        transact!(self.core, Walk, |tx| dead_letters(tx, &filter, &walk).await)
    }

    async fn health(&self, endpoint: EndpointId, now: Timestamp) -> Result<Option<EndpointHealth>> {
        transact!(self.core, Read, |tx| health(tx, endpoint, now).await)
    }

    async fn status(&self, now: Timestamp) -> Result<Status> {
        transact!(self.core, Read, |tx| status(tx, now).await)
    }

    async fn notices(&self, application: Option<ApplicationId>, limit: u32) -> Result<Vec<Notice>> {
        let limit = i64::from(limit.min(NOTICES_MAX));
        transact!(self.core, Read, |tx| match application {
            None => tx.all(sql::NOTICES_ALL, params![limit], rows::notice).await,
            Some(id) => {
                let key = params![Uuid::from(id), limit];
                tx.all(sql::NOTICES_OF_APPLICATION, key, rows::notice).await
            }
        })
    }
}

impl PostgresStore {
    /// `application`: whose message it must be; for lists of a message.
    async fn attempts(
        &self,
        list: &'static Directed,
        of: Uuid,
        application: Option<ApplicationId>,
        filter: &AttemptFilter,
        page: Page<AttemptId>,
    ) -> Result<Slice<StoredAttempt>> {
        let walk = Walk::newest_first(page);
        let (after, before) = bounds(&walk);
        let messages = Filter::of(&filter.message);
        let key = params![
            of,
            after,
            before,
            walk.rows(),
            messages.channel,
            messages.event_types,
            messages.before,
            messages.after,
            filter.delivered,
            filter.status_class.map(i64::from),
            filter.endpoint_id.map(Uuid::from),
            application.map(Uuid::from),
        ];
        let key = if application.is_some() { &key[..] } else { &key[..11] };
        let sql = list.sql(walk.descending);
        let found = transact!(self.core, Walk, |tx| tx.all(sql, key, rows::attempt).await)?;
        Ok(walk.slice(found))
    }
}

/// $5 to $8 of a list.
struct Filter {
    channel: Option<String>,
    event_types: Option<Column<String>>,
    before: Option<i64>,
    after: Option<i64>,
}

impl Filter {
    fn of(filter: &MessageFilter) -> Self {
        let names = filter.event_types.iter().map(|name| name.as_str().to_owned());
        Self {
            channel: filter.channel.as_ref().map(|channel| channel.as_str().to_owned()),
            event_types: (!filter.event_types.is_empty()).then(|| names.collect()),
            before: filter.before.map(Timestamp::as_micros),
            after: filter.after.map(Timestamp::as_micros),
        }
    }
}

fn payload_bytes_max() -> i64 {
    i64::try_from(PAGE_PAYLOAD_BYTES_MAX).unwrap_or(i64::MAX)
}

/// Several endpoints may have given up one message; a page never parts them.
async fn dead_letters(
    tx: &Tx,
    filter: &DeadLetterFilter,
    walk: &Walk<MessageId>,
) -> Result<Slice<Delivery>> {
    let mut items = dead_letters_within(tx, filter, walk, walk.rows()).await?;
    // When the last message is that of the row before it, what comes next was not read yet.
    let full = usize::try_from(walk.rows() - 1).unwrap_or(0);
    let message = |item: &Delivery| item.key.message_id;
    let last = items.get(full).map(message);
    if last.is_some() && full > 0 && last == items.get(full - 1).map(message) {
        let mut rest = walk.clone();
        match walk.descending {
            true => rest.before = last,
            false => rest.after = last,
        }
        items.extend(dead_letters_within(tx, filter, &rest, 1).await?);
    }
    Ok(walk.slice_whole(items, message))
}

/// At least `rows` rows, if there are so many, and all of the last message.
async fn dead_letters_within(
    tx: &Tx,
    filter: &DeadLetterFilter,
    walk: &Walk<MessageId>,
    rows: i64,
) -> Result<Vec<Delivery>> {
    let (after, before) = bounds(walk);
    let applications = filter.application_ids.as_ref();
    let applications: Option<Column<Uuid>> =
        applications.map(|ids| ids.iter().map(|id| Uuid::from(*id)).collect());
    let key = params![
        applications,
        after,
        before,
        filter.before.map(Timestamp::as_micros),
        filter.after.map(Timestamp::as_micros),
        rows,
        filter.endpoint_id.map(Uuid::from),
    ];
    let (list, key) = match filter.endpoint_id {
        None => (&DEAD_LETTERS, &key[..6]),
        Some(_) => (&DEAD_OF_ENDPOINT, &key[..]),
    };
    tx.all(list.sql(walk.descending), key, rows::delivery).await
}

async fn health(tx: &Tx, endpoint: EndpointId, now: Timestamp) -> Result<Option<EndpointHealth>> {
    let id = Uuid::from(endpoint);
    let since = params![id, standing::windows_since(now)];
    let id = params![id];
    let (lane, windows, waiting, held) = tokio::try_join!(
        tx.one(sql::HEALTH_LANE, id, rows::health),
        tx.all(sql::HEALTH_WINDOWS, since, standing::window),
        tx.get(sql::HEALTH_WAITING, id, |row| row.number()),
        tx.get(sql::HEALTH_HELD, id, |row| row.number()),
    )?;
    let windows = standing::merged(windows);
    Ok(lane.map(|health| EndpointHealth { health, windows, waiting, held }))
}

async fn status(tx: &Tx, now: Timestamp) -> Result<Status> {
    let mut status = Status::default();
    let reopened = tx.get(sql::STATUS_OPEN, params![], |row| status.read_open(now, row)).await?;
    let dead: u64 = tx.get(sql::STATUS_DEAD, params![], |row| row.number()).await?;
    status.dead_letter = dead.saturating_sub(reopened);
    status.oldest_undelivered = tx.one(sql::STATUS_OLDEST, params![], standing::oldest).await?;
    let minute = params![standing::first_minute(now)];
    tx.get(sql::STATUS_TALLY, minute, |row| status.read_tally(row)).await?;
    let since = params![standing::first_minute_began(now)];
    let mut times = Sketch::default();
    for sketch in tx.all(sql::STATUS_WINDOWS, since, standing::sketch).await? {
        times.merge(&sketch);
    }
    status.delivery_time = times.percentiles();
    tx.get(sql::STATUS_LANES, params![], |row| status.read_lanes(row)).await?;
    let alive = params![standing::alive_since(now)];
    status.workers = tx.get(sql::STATUS_WORKERS, alive, |row| row.number()).await?;
    Ok(status)
}

/// A page of what holds messages, which ends early when their payloads grow too large. The query
/// sees to it that hardly more is read.
async fn within_bytes<Item>(
    tx: &Tx,
    walk: &Walk<MessageId>,
    sql: &str,
    key: Params<'_>,
    read: impl Fn(&mut Fields<'_>) -> Result<Item>,
    message: impl Fn(&Item) -> &Message,
) -> Result<Slice<Item>> {
    let mut items = tx.all(sql, key, read).await?;
    let mut bytes = 0;
    let mut fits = |item: &Item| {
        bytes += message(item).payload.as_ref().map_or(0, bytes::Bytes::len);
        bytes <= PAGE_PAYLOAD_BYTES_MAX
    };
    // The first one in any case: a page that is not the last must lead somewhere.
    let kept = items.iter().take_while(|item| fits(item)).count().max(1);
    let cut = kept < items.len();
    items.truncate(kept);
    let mut slice = walk.slice(items);
    slice.more |= cut;
    Ok(slice)
}
