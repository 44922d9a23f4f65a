//! `History`: reads only, each on one snapshot.

use super::SqliteStore;
use super::catalog::bounds;
use super::db::Db;
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
use rusqlite::{Params, params, params_from_iter, types::Value};

pub(super) mod sql {
    crate::queries::queries! { "../../sql/sqlite/history.sql":
        MESSAGE_BY_ID, MESSAGE_BY_EVENT, MESSAGES_PAGE, ATTEMPT_FIND, ATTEMPTS_OF_MESSAGE,
        ATTEMPTS_OF_ENDPOINT, MESSAGES_OF_ENDPOINT, MESSAGES_OF_ENDPOINT_LATE,
        DELIVERIES_OF_MESSAGE, DELIVERY_OPEN,
        DELIVERY_ENDED, DEAD_LETTERS_PAGE, DEAD_LETTERS_OF_ENDPOINT, HEALTH_LANE, HEALTH_WINDOWS,
        HEALTH_WAITING, HEALTH_HELD, STATUS_OPEN, STATUS_OLDEST, STATUS_DEAD, STATUS_TALLY,
        STATUS_WINDOWS, STATUS_LANES, STATUS_WORKERS, NOTICES_ALL, NOTICES_OF_APPLICATION,
        LISTS_BEHIND, LIST_MESSAGES, LIST_EXPIRIES, LIST_ENDED, LIST_ATTEMPTS,
        LIST_ATTEMPTS_OF_MESSAGES, LISTS_ADVANCE,
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
impl History for SqliteStore {
    async fn message(&self, application: ApplicationId, name: &str) -> Result<Option<Message>> {
        let wanted = name.to_owned();
        self.read(move |db| match wanted.parse::<MessageId>() {
            Ok(id) => {
                let key = params![application.as_bytes(), id.as_bytes()];
                db.one(sql::MESSAGE_BY_ID, key, rows::message)
            }
            Err(_) => {
                let key = params![application.as_bytes(), wanted];
                db.one(sql::MESSAGE_BY_EVENT, key, rows::message)
            }
        })
        .await
    }

    async fn messages(
        &self,
        application: ApplicationId,
        filter: MessageFilter,
        page: Page<MessageId>,
    ) -> Result<Slice<Message>> {
        let walk = Walk::newest_first(page);
        self.read_lists(move |db| {
            let (after, before) = bounds!(walk);
            let key = params_from_iter(filtered(
                application.as_bytes(),
                after,
                before,
                walk.rows(),
                &filter,
            )?);
            let sql = MESSAGES.sql(walk.descending);
            within_bytes(db, &walk, sql, key, Vec::new(), rows::message, |message| message)
        })
        .await
    }

    async fn attempt(
        &self,
        application: ApplicationId,
        message: MessageId,
        attempt: AttemptId,
    ) -> Result<Option<StoredAttempt>> {
        self.read_lists(move |db| {
            let key = params![application.as_bytes(), message.as_bytes(), attempt.as_bytes()];
            db.one(sql::ATTEMPT_FIND, key, rows::attempt)
        })
        .await
    }

    async fn attempts_of_message(
        &self,
        application: ApplicationId,
        message: MessageId,
        filter: AttemptFilter,
        page: Page<AttemptId>,
    ) -> Result<Slice<StoredAttempt>> {
        self.read_lists(move |db| {
            let walk = Walk::newest_first(page);
            let mut key = attempts_key(message.as_bytes(), &walk, &filter)?;
            key.push(Value::Blob(application.as_bytes().to_vec()));
            let sql = OF_MESSAGE.sql(walk.descending);
            Ok(walk.slice(db.all(sql, params_from_iter(key), rows::attempt)?))
        })
        .await
    }

    async fn attempts_of_endpoint(
        &self,
        endpoint: EndpointId,
        filter: AttemptFilter,
        page: Page<AttemptId>,
    ) -> Result<Slice<StoredAttempt>> {
        self.read_lists(move |db| {
            let walk = Walk::newest_first(page);
            let key = attempts_key(endpoint.as_bytes(), &walk, &filter)?;
            let sql = OF_ENDPOINT.sql(walk.descending);
            Ok(walk.slice(db.all(sql, params_from_iter(key), rows::attempt)?))
        })
        .await
    }

    async fn messages_of_endpoint(
        &self,
        endpoint: EndpointId,
        filter: MessageFilter,
        states: Option<Vec<DeliveryState>>,
        page: Page<MessageId>,
    ) -> Result<Slice<(Message, Delivery)>> {
        let walk = Walk::newest_first(page);
        self.read_lists(move |db| {
            let (after, before) = bounds!(walk);
            let mut key = filtered(endpoint.as_bytes(), after, before, walk.rows(), &filter)?;
            let states = states
                .map(|states| states.into_iter().map(DeliveryState::as_str).collect::<Vec<_>>());
            key.push(or_null(states.as_ref().map(rows::json).transpose()?.map(Value::Text)));
            let sql = MESSAGES_OF_ENDPOINT.sql(walk.descending);
            let read = |row: &mut Fields<'_>| Ok((rows::message(row)?, rows::delivery(row)?));
            let late = db.all(sql::MESSAGES_OF_ENDPOINT_LATE, params_from_iter(&key), read)?;
            within_bytes(db, &walk, sql, params_from_iter(key), late, read, |(message, _)| message)
        })
        .await
    }

    async fn deliveries_of_message(
        &self,
        application: ApplicationId,
        message: MessageId,
        page: Page<EndpointId>,
    ) -> Result<Slice<Delivery>> {
        let walk = Walk::new(page);
        self.read_lists(move |db| {
            let (after, before) = bounds!(walk);
            let key =
                params![application.as_bytes(), after, before, walk.rows(), message.as_bytes()];
            Ok(walk.slice(db.all(DELIVERIES.sql(walk.descending), key, rows::delivery)?))
        })
        .await
    }

    async fn delivery(&self, key: DeliveryKey) -> Result<Option<Delivery>> {
        self.read(move |db| {
            let ids = params![key.endpoint_id.as_bytes(), key.message_id.as_bytes()];
            match db.one(sql::DELIVERY_OPEN, ids, rows::delivery)? {
                Some(open) => Ok(Some(open)),
                None => db.one(sql::DELIVERY_ENDED, ids, rows::delivery),
            }
        })
        .await
    }

    async fn dead_letters(
        &self,
        filter: DeadLetterFilter,
        page: Page<MessageId>,
    ) -> Result<Slice<Delivery>> {
        self.read(move |db| dead_letters(db, &filter, page)).await
    }

    async fn health(&self, endpoint: EndpointId, now: Timestamp) -> Result<Option<EndpointHealth>> {
        self.read(move |db| health(db, endpoint, now)).await
    }

    async fn status(&self, now: Timestamp) -> Result<Status> {
        self.read(move |db| status(db, now)).await
    }

    async fn notices(&self, application: Option<ApplicationId>, limit: u32) -> Result<Vec<Notice>> {
        let limit = limit.min(NOTICES_MAX);
        self.read(move |db| match application {
            None => db.all(sql::NOTICES_ALL, [limit], rows::notice),
            Some(id) => {
                db.all(sql::NOTICES_OF_APPLICATION, params![id.as_bytes(), limit], rows::notice)
            }
        })
        .await
    }
}

fn or_null(value: Option<Value>) -> Value {
    value.unwrap_or(Value::Null)
}

/// ?1 to ?8 of a list of messages.
fn filtered(
    of: &[u8; 16],
    after: Vec<u8>,
    before: Vec<u8>,
    rows: i64,
    filter: &MessageFilter,
) -> Result<Vec<Value>> {
    let time = |at: Option<Timestamp>| or_null(at.map(|at| Value::Integer(at.as_micros())));
    let event_types = match filter.event_types.as_slice() {
        [] => None,
        names => Some(rows::json(names)?),
    };
    let channel = filter.channel.as_ref().map(|channel| channel.as_str().to_owned());
    Ok(vec![
        Value::Blob(of.to_vec()),
        Value::Blob(after),
        Value::Blob(before),
        Value::Integer(rows),
        or_null(channel.map(Value::Text)),
        or_null(event_types.map(Value::Text)),
        time(filter.before),
        time(filter.after),
    ])
}

/// ?1 to ?11 of a list of attempts.
fn attempts_key(
    of: &[u8; 16],
    walk: &Walk<AttemptId>,
    filter: &AttemptFilter,
) -> Result<Vec<Value>> {
    let (after, before) = bounds!(walk);
    let mut key = filtered(of, after, before, walk.rows(), &filter.message)?;
    key.push(or_null(filter.delivered.map(|delivered| Value::Integer(delivered.into()))));
    key.push(or_null(filter.status_class.map(|class| Value::Integer(class.into()))));
    key.push(or_null(filter.endpoint_id.map(|id| Value::Blob(id.as_bytes().to_vec()))));
    Ok(key)
}

/// Several endpoints may have given up one message; a page never parts them.
fn dead_letters(
    db: &Db<'_>,
    filter: &DeadLetterFilter,
    page: Page<MessageId>,
) -> Result<Slice<Delivery>> {
    let walk = Walk::newest_first(page);
    let (after, before) = bounds!(walk);
    let hex = |id: &ApplicationId| -> String {
        id.as_bytes().iter().map(|byte| format!("{byte:02X}")).collect()
    };
    let applications = filter.application_ids.as_ref();
    let applications: Option<Vec<String>> = applications.map(|ids| ids.iter().map(hex).collect());
    let mut key = vec![
        or_null(applications.as_ref().map(rows::json).transpose()?.map(Value::Text)),
        Value::Blob(after),
        Value::Blob(before),
        or_null(filter.before.map(|at| Value::Integer(at.as_micros()))),
        or_null(filter.after.map(|at| Value::Integer(at.as_micros()))),
    ];
    let list = match filter.endpoint_id {
        None => &DEAD_LETTERS,
        Some(id) => {
            key.push(Value::Blob(id.as_bytes().to_vec()));
            &DEAD_OF_ENDPOINT
        }
    };
    let mut items: Vec<Delivery> = Vec::new();
    let full = usize::try_from(walk.rows() - 1).unwrap_or(0);
    db.each(list.sql(walk.descending), params_from_iter(key), |row| {
        items.push(rows::delivery(row)?);
        let complete = items.len() > full
            && (full == 0
                || items.last().map(|item| item.key.message_id)
                    != items.get(full - 1).map(|item| item.key.message_id));
        Ok(!complete)
    })?;
    Ok(walk.slice_whole(items, |item| item.key.message_id))
}

fn health(db: &Db<'_>, endpoint: EndpointId, now: Timestamp) -> Result<Option<EndpointHealth>> {
    let id = endpoint.as_bytes();
    let Some(health) = db.one(sql::HEALTH_LANE, [id], rows::health)? else { return Ok(None) };
    let since = standing::windows_since(now);
    let windows = db.all(sql::HEALTH_WINDOWS, params![id, since], standing::window)?;
    Ok(Some(EndpointHealth {
        health,
        windows: standing::merged(windows),
        waiting: db.get(sql::HEALTH_WAITING, [id], |row| row.number())?,
        held: db.get(sql::HEALTH_HELD, [id], |row| row.number())?,
    }))
}

fn status(db: &Db<'_>, now: Timestamp) -> Result<Status> {
    let mut status = Status::default();
    let reopened = db.get(sql::STATUS_OPEN, [], |row| status.read_open(now, row))?;
    let dead: u64 = db.get(sql::STATUS_DEAD, [], |row| row.number())?;
    status.dead_letter = dead.saturating_sub(reopened);
    status.oldest_undelivered = db.one(sql::STATUS_OLDEST, [], standing::oldest)?;
    let first_minute = standing::first_minute(now);
    db.get(sql::STATUS_TALLY, [first_minute], |row| status.read_tally(row))?;
    let since = standing::first_minute_began(now);
    let mut times = Sketch::default();
    for sketch in db.all(sql::STATUS_WINDOWS, [since], standing::sketch)? {
        times.merge(&sketch);
    }
    status.delivery_time = times.percentiles();
    db.get(sql::STATUS_LANES, [], |row| status.read_lanes(row))?;
    let alive_since = standing::alive_since(now);
    status.workers = db.get(sql::STATUS_WORKERS, [alive_since], |row| row.number())?;
    Ok(status)
}

/// A page of what holds messages, which ends early when their payloads grow too large. `late` goes
/// between the rows of the query, where the order wants it.
fn within_bytes<Item>(
    db: &Db<'_>,
    walk: &Walk<MessageId>,
    sql: &'static str,
    key: impl Params,
    mut late: Vec<Item>,
    read: impl Fn(&mut Fields<'_>) -> Result<Item>,
    message: impl Fn(&Item) -> &Message,
) -> Result<Slice<Item>> {
    // The last of them comes first.
    late.sort_by_key(|item| message(item).id);
    if !walk.descending {
        late.reverse();
    }
    let comes_before = |one: &Item, other: &Item| match walk.descending {
        true => message(one).id > message(other).id,
        false => message(one).id < message(other).id,
    };
    let mut items = Vec::new();
    let (mut bytes, mut cut) = (0, false);
    let mut push = |item: Item| {
        bytes += message(&item).payload.as_ref().map_or(0, bytes::Bytes::len);
        cut = bytes > PAGE_PAYLOAD_BYTES_MAX && !items.is_empty();
        if !cut {
            items.push(item);
        }
        !cut
    };
    let mut goes_on = true;
    db.each(sql, key, |row| {
        let item = read(row)?;
        while goes_on && let Some(first) = late.pop_if(|late| comes_before(late, &item)) {
            goes_on = push(first);
        }
        goes_on = goes_on && push(item);
        Ok(goes_on)
    })?;
    while goes_on && let Some(item) = late.pop() {
        goes_on = push(item);
    }
    let mut slice = walk.slice(items);
    slice.more |= cut;
    Ok(slice)
}
