//! Rows into the domain's types and back: written once for all drivers.
//!
//! A driver implements `Row`; every mapping reads its columns one after the other through `Fields`,
//! in the order in which the queries name them. What cannot be read is a defect of the data and
//! an error, never a panic.

use crate::Result;
use crate::catalog::{Begun, KeptAnswer};
use crate::error::{Error, Kind};
use crate::history::{Delivery, Notice, StoredAttempt};
use crate::outbox::IdempotencyKey;
use crate::upkeep::{Task, TaskStatus};
use bytes::Bytes;
use posthaste_core::breaker::{Breaker, Position};
use posthaste_core::delivery::{Class, DeliveryKey, DeliveryState, Trigger};
use posthaste_core::endpoint::{
    Application, DisabledReason, Endpoint, EndpointHeaders, EndpointUrl, EventType,
};
use posthaste_core::event::{
    ApplicationUid, EndpointUid, EventId, EventTypeName, FeatureFlag, OrganisationId,
};
use posthaste_core::id::{
    ApplicationId, AttemptId, EndpointId, MessageId, NoticeId, TaskId, WorkerId,
};
use posthaste_core::lane::Health;
use posthaste_core::limiter::LimiterState;
use posthaste_core::message::Message;
use posthaste_core::outcome::{Answer, Failure, FailureKind, Outcome, Phase, Response, Timing};
use posthaste_core::sign::{OldSecret, Secret, SecretRing};
use posthaste_core::time::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a driver's row gives.
pub(crate) trait Row {
    fn int(&self, column: usize) -> Result<Option<i64>>;
    fn text(&self, column: usize) -> Result<Option<&str>>;
    fn blob(&self, column: usize) -> Result<Option<&[u8]>>;
}

/// Reads a row's columns one after the other.
pub(crate) struct Fields<'r> {
    row: &'r dyn Row,
    column: usize,
}

/// A 16-byte id.
pub(crate) trait Id {
    fn from_column(bytes: [u8; 16]) -> Self;
}

macro_rules! ids {
    ($($name:ident),+) => {
        $(impl Id for $name {
            fn from_column(bytes: [u8; 16]) -> Self {
                Self::from_bytes(bytes)
            }
        })+
    };
}
ids!(ApplicationId, AttemptId, EndpointId, MessageId, NoticeId, TaskId, WorkerId);

impl<'r> Fields<'r> {
    pub fn new(row: &'r dyn Row) -> Self {
        Self { row, column: 0 }
    }

    fn next(&mut self) -> usize {
        self.column += 1;
        self.column - 1
    }

    /// The defect of the column that was read last.
    fn bad(&self, what: &str) -> Error {
        let column = self.column.saturating_sub(1);
        Error::new(Kind::Internal, format!("stored data: column {column} is not {what}"))
    }

    pub fn opt_int(&mut self) -> Result<Option<i64>> {
        let column = self.next();
        self.row.int(column)
    }

    pub fn int(&mut self) -> Result<i64> {
        self.opt_int()?.ok_or_else(|| self.bad("there"))
    }

    /// An integer of a narrower type.
    pub fn number<T: TryFrom<i64>>(&mut self) -> Result<T> {
        T::try_from(self.int()?).map_err(|_| self.bad("in its range"))
    }

    pub fn opt_number<T: TryFrom<i64>>(&mut self) -> Result<Option<T>> {
        self.opt_int()?.map(T::try_from).transpose().map_err(|_| self.bad("in its range"))
    }

    pub fn flag(&mut self) -> Result<bool> {
        Ok(self.int()? != 0)
    }

    pub fn time(&mut self) -> Result<Timestamp> {
        self.int().map(Timestamp::from_micros)
    }

    pub fn opt_time(&mut self) -> Result<Option<Timestamp>> {
        Ok(self.opt_int()?.map(Timestamp::from_micros))
    }

    pub fn span(&mut self) -> Result<Duration> {
        Ok(Duration::from_micros(self.number()?))
    }

    pub fn opt_span(&mut self) -> Result<Option<Duration>> {
        Ok(self.opt_number()?.map(Duration::from_micros))
    }

    pub fn opt_text(&mut self) -> Result<Option<&'r str>> {
        let column = self.next();
        self.row.text(column)
    }

    pub fn text(&mut self) -> Result<&'r str> {
        self.opt_text()?.ok_or_else(|| self.bad("there"))
    }

    pub fn opt_blob(&mut self) -> Result<Option<&'r [u8]>> {
        let column = self.next();
        self.row.blob(column)
    }

    pub fn blob(&mut self) -> Result<&'r [u8]> {
        self.opt_blob()?.ok_or_else(|| self.bad("there"))
    }

    pub fn id<T: Id>(&mut self) -> Result<T> {
        self.opt_id()?.ok_or_else(|| self.bad("there"))
    }

    pub fn opt_id<T: Id>(&mut self) -> Result<Option<T>> {
        let bytes = self.opt_blob()?.map(<[u8; 16]>::try_from).transpose();
        Ok(bytes.map_err(|_| self.bad("an id"))?.map(T::from_column))
    }

    /// A name that checks itself.
    pub fn name<T, E>(&mut self, parse: impl FnOnce(&str) -> Result<T, E>) -> Result<T> {
        parse(self.text()?).map_err(|_| self.bad("a name"))
    }

    pub fn opt_name<T, E>(
        &mut self,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>> {
        self.opt_text()?.map(parse).transpose().map_err(|_| self.bad("a name"))
    }

    pub fn json<T: DeserializeOwned>(&mut self) -> Result<T> {
        self.opt_json()?.ok_or_else(|| self.bad("there"))
    }

    pub fn opt_json<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let text = self.opt_text()?;
        text.map(serde_json::from_str).transpose().map_err(|_| self.bad("the expected JSON"))
    }
}

/// What is kept as JSON text.
pub(crate) fn json<T: Serialize + ?Sized>(value: &T) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|error| Error::new(Kind::Internal, "a value has no JSON form").because(error))
}

/// id, organisation_id, uid, name, throttle_rate, metadata, created_at, updated_at
pub(crate) fn application(row: &mut Fields<'_>) -> Result<Application> {
    Ok(Application {
        id: row.id()?,
        organisation_id: row.name(|text| OrganisationId::new(text).ok_or(()))?,
        uid: row.opt_name(ApplicationUid::new)?,
        name: row.text()?.to_owned(),
        throttle_rate: row.opt_number()?,
        metadata: row.json()?,
        created_at: row.time()?,
        updated_at: row.time()?,
    })
}

/// id, application_id, uid, url, description, disabled, event_types, channels, throttle_rate,
/// version, metadata, headers, secrets, policy, created_at, updated_at
pub(crate) fn endpoint(row: &mut Fields<'_>) -> Result<Endpoint> {
    Ok(Endpoint {
        id: row.id()?,
        application_id: row.id()?,
        uid: row.opt_name(EndpointUid::new)?,
        url: row.name(EndpointUrl::parse)?,
        description: row.text()?.to_owned(),
        disabled: row.opt_name(|text| disabled_reason(text).ok_or(()))?,
        event_types: row.opt_json()?,
        channels: row.opt_json()?,
        throttle_rate: row.opt_number()?,
        version: row.number()?,
        metadata: row.json()?,
        headers: {
            let headers: Vec<(String, String)> = row.json()?;
            EndpointHeaders::new(headers).map_err(|_| row.bad("a list of headers"))?
        },
        secrets: {
            let secrets: StoredSecrets = row.json()?;
            secrets.read().ok_or_else(|| row.bad("a list of secrets"))?
        },
        policy: row.json()?,
        created_at: row.time()?,
        updated_at: row.time()?,
    })
}

pub(crate) const fn disabled_text(reason: DisabledReason) -> &'static str {
    match reason {
        DisabledReason::Manual => "manual",
        DisabledReason::Gone => "gone",
        DisabledReason::Failing => "failing",
    }
}

fn disabled_reason(text: &str) -> Option<DisabledReason> {
    [DisabledReason::Manual, DisabledReason::Gone, DisabledReason::Failing]
        .into_iter()
        .find(|reason| disabled_text(*reason) == text)
}

/// Headers as pairs in their order.
pub(crate) fn headers_json(headers: &EndpointHeaders) -> Result<String> {
    json(&headers.iter().collect::<Vec<_>>())
}

/// The stored form of a ring of secrets. It is as secret as they are.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredSecrets {
    current: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    old: Vec<(String, Timestamp)>,
}

impl StoredSecrets {
    pub fn of(ring: &SecretRing) -> Self {
        Self {
            current: ring.current.expose(),
            old: ring.old.iter().map(|old| (old.secret.expose(), old.expires_at)).collect(),
        }
    }

    fn read(self) -> Option<SecretRing> {
        let old = self.old.into_iter().map(|(text, expires_at)| {
            Some(OldSecret { secret: Secret::parse(&text).ok()?, expires_at })
        });
        Some(SecretRing {
            current: Secret::parse(&self.current).ok()?,
            old: old.collect::<Option<_>>()?,
        })
    }
}

/// organisation_id, name, description, archived, deprecated, schemas, feature_flag, group_name,
/// created_at, updated_at
pub(crate) fn event_type(row: &mut Fields<'_>) -> Result<EventType> {
    Ok(EventType {
        organisation_id: row.name(|text| OrganisationId::new(text).ok_or(()))?,
        name: row.name(EventTypeName::new)?,
        description: row.text()?.to_owned(),
        archived: row.flag()?,
        deprecated: row.flag()?,
        schemas: row.opt_text()?.map(str::to_owned),
        feature_flag: row.opt_name(FeatureFlag::new)?,
        group_name: row.opt_text()?.map(str::to_owned),
        created_at: row.time()?,
        updated_at: row.time()?,
    })
}

/// breaker, breaker_until, consecutive_failures, cooldown, quiet_until, ramp, failing_since,
/// last_failure_at, last_success_at, warned_percent, limiter_next_at, p95_ms
pub(crate) fn health(row: &mut Fields<'_>) -> Result<Health> {
    let (position, until) = (row.int()?, row.time()?);
    Ok(Health {
        breaker: Breaker {
            position: match position {
                1 => Position::Open { until },
                2 => Position::HalfOpen { probe_until: until },
                _ => Position::Closed,
            },
            consecutive_failures: row.number()?,
            cooldown: row.span()?,
        },
        quiet_until: row.opt_time()?,
        ramp: row.opt_number()?,
        failing_since: row.opt_time()?,
        last_failure_at: row.opt_time()?,
        last_success_at: row.opt_time()?,
        warned_percent: row.number()?,
        limiter: LimiterState { next_at: row.time()? },
        p95_ms: row.number()?,
    })
}

/// A breaker's position as its two columns.
pub(crate) const fn position_columns(position: Position) -> (i64, i64) {
    match position {
        Position::Closed => (0, 0),
        Position::Open { until } => (1, until.as_micros()),
        Position::HalfOpen { probe_until } => (2, probe_until.as_micros()),
    }
}

/// A span as a column; saturates.
pub(crate) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// application_id, id, event_id, event_type, channels, payload, created_at, expires_at
pub(crate) fn message(row: &mut Fields<'_>) -> Result<Message> {
    Ok(Message {
        application_id: row.id()?,
        id: row.id()?,
        event_id: row.opt_name(EventId::new)?,
        event_type: row.name(EventTypeName::new)?,
        channels: row.opt_json()?.unwrap_or_default(),
        payload: row.opt_blob()?.map(Bytes::copy_from_slice),
        created_at: row.time()?,
        expires_at: row.time()?,
    })
}

pub(crate) const WAITING: i64 = 0;
pub(crate) const LEASED: i64 = 1;
pub(crate) const HELD: i64 = 2;
pub(crate) const DELIVERED: i64 = 3;
pub(crate) const DEAD_LETTER: i64 = 4;
pub(crate) const CANCELLED: i64 = 5;

/// endpoint_id, message_id, application_id, state, attempts, accepted_at, due_at, ended_at, cause,
/// last_status
pub(crate) fn delivery(row: &mut Fields<'_>) -> Result<Delivery> {
    let key = DeliveryKey { endpoint_id: row.id()?, message_id: row.id()? };
    let application_id = row.id()?;
    let state = row.int()?;
    let attempts = row.number()?;
    let state = match state {
        WAITING if attempts == 0 => DeliveryState::Pending,
        WAITING => DeliveryState::AwaitingRetry,
        LEASED => DeliveryState::InFlight,
        HELD => DeliveryState::Held,
        DELIVERED => DeliveryState::Delivered,
        DEAD_LETTER => DeliveryState::DeadLetter,
        CANCELLED => DeliveryState::Cancelled,
        _ => return Err(row.bad("a delivery's state")),
    };
    let accepted_at = row.time()?;
    let due_at = row.opt_time()?;
    let waits = matches!(state, DeliveryState::Pending | DeliveryState::AwaitingRetry);
    Ok(Delivery {
        key,
        application_id,
        state,
        attempts,
        accepted_at,
        next_attempt_at: due_at.filter(|_| waits),
        ended_at: row.opt_time()?,
        cause: row.opt_text()?.map(str::to_owned),
        last_status: row.opt_number()?,
    })
}

pub(crate) const fn trigger_column(trigger: Trigger) -> i64 {
    match trigger {
        Trigger::Scheduled => 0,
        Trigger::Manual => 1,
    }
}

pub(crate) fn trigger(row: &mut Fields<'_>) -> Result<Trigger> {
    Ok(if row.int()? == 0 { Trigger::Scheduled } else { Trigger::Manual })
}

pub(crate) fn class(row: &mut Fields<'_>) -> Result<Class> {
    Class::from_index(row.number()?).ok_or_else(|| row.bad("a class"))
}

/// message_id, id, endpoint_id, number, trigger, started_at, url, status, retry_after, body,
/// body_cut, failure, failure_phase, failure_detail, dns, connect, tls, first_byte, total, remote,
/// verdict, next_attempt_at
pub(crate) fn attempt(row: &mut Fields<'_>) -> Result<StoredAttempt> {
    let message_id = row.id()?;
    let id = row.id()?;
    let endpoint_id = row.id()?;
    let number = row.number()?;
    let trigger = trigger(row)?;
    let started_at = row.time()?;
    let url = row.text()?.to_owned();
    let answer = answer(row)?;
    let timing = Timing {
        dns: row.opt_span()?,
        connect: row.opt_span()?,
        tls: row.opt_span()?,
        first_byte: row.opt_span()?,
        total: row.span()?,
    };
    let remote = row.opt_name(str::parse)?;
    Ok(StoredAttempt {
        id,
        key: DeliveryKey { endpoint_id, message_id },
        number,
        trigger,
        started_at,
        url,
        outcome: Outcome { answer, timing, remote },
        verdict: row.text()?.to_owned(),
        next_attempt_at: row.opt_time()?,
    })
}

/// status, retry_after, body, body_cut, failure, failure_phase, failure_detail
fn answer(row: &mut Fields<'_>) -> Result<Answer> {
    let status = row.opt_number()?;
    let retry_after = row.opt_blob()?.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let body = row.opt_blob()?.map(Bytes::copy_from_slice).unwrap_or_default();
    let body_cut = row.flag()?;
    let kind = row.opt_name(|text| FailureKind::parse(text).ok_or(()))?;
    let phase = row.opt_name(|text| Phase::parse(text).ok_or(()))?;
    let detail = row.opt_text()?.unwrap_or_default().to_owned();
    match (status, kind, phase) {
        (Some(status), _, _) => {
            Ok(Answer::Response(Response { status, retry_after, body, body_cut }))
        }
        (None, Some(kind), Some(phase)) => Ok(Answer::Failure(Failure { kind, phase, detail })),
        _ => Err(row.bad("part of an answer or a failure")),
    }
}

/// id, application_id, endpoint_id, since, until, states, rate_per_second, status, replayed,
/// skipped, cursor, created_at, updated_at
pub(crate) fn task(row: &mut Fields<'_>) -> Result<Task> {
    Ok(Task {
        id: row.id()?,
        application_id: row.id()?,
        endpoint_id: row.id()?,
        since: row.time()?,
        until: row.time()?,
        states: row.name(|text| {
            let names = text.split(',').filter(|name| !name.is_empty());
            names.map(task_state).collect::<Option<_>>().ok_or(())
        })?,
        rate_per_second: row.opt_number()?,
        status: if row.flag()? { TaskStatus::Finished } else { TaskStatus::Running },
        replayed: row.number()?,
        skipped: row.number()?,
        cursor: row.opt_id()?,
        created_at: row.time()?,
        updated_at: row.time()?,
    })
}

fn task_state(text: &str) -> Option<DeliveryState> {
    DeliveryState::ALL.into_iter().find(|state| state.as_str() == text)
}

pub(crate) fn task_states(states: &[DeliveryState]) -> String {
    states.iter().map(|state| state.as_str()).collect::<Vec<_>>().join(",")
}

/// What is answered to a request whose key was used before; `None`: it may be done (again).
///
/// request_hash, state, message_id, status, body, takeover_at, expires_at
pub(crate) fn request(
    row: &mut Fields<'_>,
    key: &IdempotencyKey,
    now: Timestamp,
) -> Result<Option<Begun>> {
    let same = row.blob()? == key.request_hash;
    let done = row.flag()?;
    let _message = row.opt_blob()?;
    let (status, body) = (row.opt_number()?, row.opt_blob()?.unwrap_or_default().to_vec());
    let (takeover_at, expires_at) = (row.opt_time()?, row.time()?);
    Ok(match (same, status) {
        _ if expires_at <= now => None,
        (true, Some(status)) if done => Some(Begun::Done(KeptAnswer { status, body })),
        (true, None) if !done => takeover_at.is_some_and(|at| at > now).then_some(Begun::Busy),
        _ => Some(Begun::KeyReused),
    })
}

/// id, application_id, endpoint_id, kind, detail
pub(crate) fn notice(row: &mut Fields<'_>) -> Result<Notice> {
    Ok(Notice {
        id: row.id()?,
        application_id: row.id()?,
        endpoint_id: row.id()?,
        kind: row.text()?.to_owned(),
        detail: row.text()?.to_owned(),
    })
}
