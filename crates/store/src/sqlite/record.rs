//! Records: attempts, what becomes of their deliveries, and what they show about the lanes.

use super::lanes::sql;
use super::lists;
use super::writer::Tx;
use crate::lanes::{Ended, Lane, LaneNotice, LaneState, Tally, minute_of, observe};
use crate::outbox::{LaneEvent, RecordBatch, Recorded, Scope, WindowSketch};
use crate::rows;
use crate::{Error, Kind, Result};
use posthaste_core::breaker::Position;
use posthaste_core::delivery::{Cause, Class, DeliveryKey, Record, Verdict};
use posthaste_core::endpoint::Endpoint;
use posthaste_core::id::EndpointId;
use posthaste_core::lane::Event;
use posthaste_core::outcome::Answer;
use posthaste_core::time::Timestamp;
use rusqlite::params;
use std::collections::BTreeMap;

/// Writes a batch.
pub(super) fn record(tx: &mut Tx<'_>, batch: &RecordBatch) -> Result<Recorded> {
    let mut run = Run {
        batch,
        lanes: BTreeMap::new(),
        tallies: BTreeMap::new(),
        recorded: Recorded::default(),
    };
    for (index, (record, endpoint)) in batch.records.iter().enumerate() {
        run.apply(tx, index, record, endpoint)?;
    }
    for sketch in &batch.sketches {
        run.sketch(tx, sketch)?;
    }
    for (_, seen) in std::mem::take(&mut run.lanes) {
        run.settle(tx, seen)?;
    }
    for tally in run.tallies.values() {
        tx.add_tally(batch.worker_id, tally)?;
    }
    Ok(run.recorded)
}

struct Run<'b> {
    batch: &'b RecordBatch,
    lanes: BTreeMap<EndpointId, Seen>,
    /// By minute.
    tallies: BTreeMap<i64, Tally>,
    recorded: Recorded,
}

/// One lane and what the batch says about it.
struct Seen {
    lane: Lane,
    /// Indices of the records that count.
    records: Vec<usize>,
    /// The earliest time that a delivery of the batch waits for.
    due_at: Option<Timestamp>,
}

impl Run<'_> {
    fn seen(&mut self, tx: &Tx<'_>, id: EndpointId) -> Result<&mut Seen> {
        use std::collections::btree_map::Entry;
        match self.lanes.entry(id) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let lane = tx.lane(id)?;
                let lane =
                    lane.ok_or_else(|| Error::new(Kind::Internal, "a record without a lane"))?;
                Ok(entry.insert(Seen { lane, records: Vec::new(), due_at: None }))
            }
        }
    }

    /// Moves one delivery on, if the lease is in force, and keeps its attempt in any case.
    fn apply(
        &mut self,
        tx: &Tx<'_>,
        index: usize,
        record: &Record,
        endpoint: &Endpoint,
    ) -> Result<()> {
        let key = record.delivery.key;
        let state = self.seen(tx, key.endpoint_id)?.lane.state;
        let in_force = match (&record.verdict, state) {
            (Verdict::Delivered, _) => end(tx, record, rows::DELIVERED, None)?,
            (Verdict::Dead(cause), _) => end(tx, record, rows::DEAD_LETTER, Some(cause.clone()))?,
            (Verdict::RetryAt(_), LaneState::Deleted) => {
                end(tx, record, rows::CANCELLED, Some(Cause::EndpointDeleted))?
            }
            (Verdict::RetryAt(due_at), _) => wait(tx, record, state.waits_as(), *due_at)?,
        };
        keep(tx, record, endpoint, in_force)?;
        if !in_force {
            self.recorded.stale.push(key);
            return Ok(());
        }
        let seen = self.seen(tx, key.endpoint_id)?;
        seen.records.push(index);
        if let Verdict::RetryAt(due_at) = record.verdict {
            seen.due_at = Some(seen.due_at.map_or(due_at, |earlier| earlier.min(due_at)));
        }
        self.count(record);
        Ok(())
    }

    fn count(&mut self, record: &Record) {
        let minute = minute_of(record.ended_at);
        let tally = self.tallies.entry(minute).or_insert(Tally { minute, ..Tally::default() });
        tally.count(record);
    }

    fn sketch(&mut self, tx: &Tx<'_>, sketch: &WindowSketch) -> Result<()> {
        let (scope, endpoint): (i64, Option<EndpointId>) = match sketch.scope {
            Scope::EndpointLatency(id) => (0, Some(id)),
            Scope::DeliveryTime => (1, None),
        };
        let id = endpoint.as_ref().map_or(&[][..], |id| id.as_bytes());
        let start = sketch.start.as_micros();
        let worker = self.batch.worker_id;
        tx.db
            .run(sql::SKETCH_STORE, params![scope, id, start, worker.as_bytes(), sketch.sketch])?;
        if let Some(id) = endpoint
            && sketch.p95_ms > 0
        {
            self.seen(tx, id)?.lane.health.p95_ms = sketch.p95_ms;
        }
        Ok(())
    }

    /// Folds a lane's records into its health, in the order in which the attempts ended.
    fn settle(&mut self, tx: &mut Tx<'_>, mut seen: Seen) -> Result<()> {
        let lane = &mut seen.lane;
        seen.records.sort_by_key(|index| self.batch.records[*index].0.ended_at);
        let mut notices = Vec::new();
        for index in &seen.records {
            let record = &self.batch.records[*index].0;
            let seen = observe(record, &lane.health);
            for event in lane.health.settle(&self.batch.rules, &seen, record.roll) {
                notices.push(LaneNotice { event, at: record.ended_at, roll: record.roll });
            }
        }
        self.next_due(tx, lane, seen.due_at)?;
        tx.store_lane(lane)?;
        for notice in notices {
            let ends = matches!(notice.event, Event::Exhausted { .. } | Event::Gone);
            match (ends, lane.state) {
                (true, LaneState::InUse) => tx.disable(lane, &notice)?,
                // Disabled or deleted already: there is nothing to say.
                (true, _) => continue,
                (false, _) => tx.notice(lane, &notice)?,
            }
            self.recorded.events.push(LaneEvent {
                application_id: lane.application_id,
                endpoint_id: lane.endpoint_id,
                event: notice.event,
            });
        }
        self.recorded.lanes.push((lane.endpoint_id, lane.health));
        Ok(())
    }

    /// When the lane is due, now that its deliveries moved and its health changed.
    fn next_due(&mut self, tx: &Tx<'_>, lane: &mut Lane, due_at: Option<Timestamp>) -> Result<()> {
        if lane.state != LaneState::InUse {
            return Ok(());
        }
        let now = self.batch.now;
        if let Some(due_at) = due_at {
            lane.next_due_at = Some(lane.next_due_at.map_or(due_at, |next| next.min(due_at)));
            self.recorded.due_now |= due_at <= now;
        }
        match lane.health.breaker.position {
            Position::Open { until } | Position::HalfOpen { probe_until: until } => {
                // As soon as a probe may go, whatever its plan: that is how a recovery is noticed.
                if tx.lane_waits(lane.endpoint_id, now)? {
                    lane.next_due_at = Some(until);
                }
            }
            Position::Closed if lane.health.ramp.is_some() => {
                if tx.lane_waits(lane.endpoint_id, now)? {
                    lane.next_due_at = Some(now);
                    self.recorded.due_now = true;
                } else {
                    lane.health.ramp = None;
                }
            }
            Position::Closed => {}
        }
        Ok(())
    }
}

/// Ends a delivery under its lease. `false`: the lease is not in force.
fn end(tx: &Tx<'_>, record: &Record, state: i64, cause: Option<Cause>) -> Result<bool> {
    let delivery = &record.delivery;
    let DeliveryKey { endpoint_id, message_id } = delivery.key;
    let ended = tx.db.run(
        sql::DELIVERY_END,
        params![
            endpoint_id.as_bytes(),
            message_id.as_bytes(),
            delivery.lease.number,
            delivery.lease.worker_id.as_bytes(),
        ],
    )?;
    let how = Ended {
        key: delivery.key,
        application_id: delivery.application_id,
        state,
        cause,
        attempts: delivery.attempt,
        lease_number: delivery.lease.number,
        accepted_at: delivery.accepted_at,
        ended_at: record.ended_at,
        last_status: record.outcome.status(),
    };
    if ended > 0 {
        tx.store_ended(&how)?;
        return Ok(true);
    }
    let open = tx.open_delivery(delivery.key)?;
    let in_force = open.is_some_and(|open| open.is_leased(&delivery.lease));
    if in_force {
        tx.end(&how)?;
    }
    Ok(in_force)
}

/// Lets a delivery wait or holds it, under its lease. `false`: the lease is not in force.
fn wait(tx: &Tx<'_>, record: &Record, state: i64, due_at: Timestamp) -> Result<bool> {
    let delivery = &record.delivery;
    let class = Class::of_attempt(delivery.plan_attempt.saturating_add(1));
    let waits = tx.db.run(
        sql::DELIVERY_WAIT,
        params![
            delivery.key.endpoint_id.as_bytes(),
            delivery.key.message_id.as_bytes(),
            delivery.lease.number,
            delivery.lease.worker_id.as_bytes(),
            state,
            due_at.as_micros(),
            class as i64,
            record.outcome.status(),
        ],
    )?;
    Ok(waits > 0)
}

/// Keeps the attempt. One that is recorded twice is kept once: its first record ended the lease.
fn keep(tx: &Tx<'_>, record: &Record, endpoint: &Endpoint, in_force: bool) -> Result<()> {
    let delivery = &record.delivery;
    if !in_force {
        lists::complete(&tx.db)?;
        let key = [delivery.key.message_id.as_bytes(), record.attempt_id.as_bytes()];
        if tx.db.get(sql::ATTEMPT_KEPT, key, |row| row.flag())? {
            return Ok(());
        }
    }
    let (response, failure) = match &record.outcome.answer {
        Answer::Response(response) => (Some(response), None),
        Answer::Failure(failure) => (None, Some(failure)),
    };
    let timing = &record.outcome.timing;
    let next_attempt_at = match record.verdict {
        Verdict::RetryAt(due_at) if in_force => Some(due_at.as_micros()),
        _ => None,
    };
    tx.db.run(
        sql::ATTEMPT_INSERT,
        params![
            delivery.key.message_id.as_bytes(),
            record.attempt_id.as_bytes(),
            delivery.key.endpoint_id.as_bytes(),
            delivery.attempt,
            rows::trigger_column(delivery.trigger),
            record.started_at.as_micros(),
            endpoint.url.as_str(),
            response.map(|response| response.status),
            response.and_then(|response| response.retry_after.as_deref()).map(str::as_bytes),
            response.map(|response| &response.body[..]).filter(|body| !body.is_empty()),
            response.is_some_and(|response| response.body_cut),
            failure.map(|failure| failure.kind.as_str()),
            failure.map(|failure| failure.phase.as_str()),
            failure.map(|failure| failure.detail.as_str()),
            timing.dns.map(rows::micros),
            timing.connect.map(rows::micros),
            timing.tls.map(rows::micros),
            timing.first_byte.map(rows::micros),
            rows::micros(timing.total),
            record.outcome.remote.map(|address| address.to_string()),
            if in_force { record.verdict.as_str() } else { "stale" },
            next_attempt_at,
        ],
    )?;
    Ok(())
}
