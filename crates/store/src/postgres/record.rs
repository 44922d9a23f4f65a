//! Records: attempts, what becomes of their deliveries, and what they show about the lanes.

use super::db::{Column, Tx, Uuid, params};
use super::lanes::{micros, sql};
use crate::lanes::{Ended, Lane, LaneNotice, LaneState, Tally, minute_of, observe};
use crate::outbox::{LaneEvent, RecordBatch, Recorded, Scope};
use crate::rows;
use crate::{Error, Kind, Result};
use posthaste_core::breaker::Position;
use posthaste_core::delivery::{Cause, Class, DeliveryKey, Record, Verdict};
use posthaste_core::endpoint::Endpoint;
use posthaste_core::id::{EndpointId, WorkerId};
use posthaste_core::lane::Event;
use posthaste_core::outcome::Answer;
use posthaste_core::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// Writes a batch and commits it. `None`: an endpoint is to be disabled, but the applications are
/// not locked; nothing was written.
pub(super) async fn record(
    tx: &Tx,
    batch: &RecordBatch,
    lock_applications: bool,
) -> Result<Option<Recorded>> {
    let applications = async { if lock_applications { lock(tx, batch).await } else { Ok(()) } };
    let (_, lanes) = tokio::try_join!(biased; applications, tx.lanes(named(batch)))?;
    let mut run = Run::new(batch, lanes);
    let moves = run.moves()?;
    let in_force = moves.write(tx).await?;
    run.fold(&moves, in_force)?;
    if !lock_applications && run.disables() {
        tx.roll_back().await?;
        return Ok(None);
    }
    let now = batch.now;
    let asked = run.asked();
    let (_, _, waits) = tokio::try_join!(biased;
        keep(tx, batch, &run.counted),
        tx.store_ended(&run.ended),
        tx.waiting_lanes(&asked, now),
    )?;
    run.next_due(&waits);
    let notices = std::mem::take(&mut run.notices);
    tx.store_lanes(run.lanes.values().map(|seen| &seen.lane)).await?;
    for (id, notice) in notices {
        run.tell(tx, id, &notice).await?;
    }
    let tallies: Vec<Tally> = run.tallies.values().copied().collect();
    tokio::try_join!(biased;
        tx.add_tallies(batch.worker_id, &tallies),
        store_sketches(tx, batch),
        tx.commit(),
    )?;
    Ok(Some(run.finish()))
}

/// The lanes that the batch says something about.
fn named(batch: &RecordBatch) -> BTreeSet<EndpointId> {
    let of_sketches = batch.sketches.iter().filter_map(|sketch| match sketch.scope {
        Scope::EndpointLatency(id) if sketch.p95_ms > 0 => Some(id),
        _ => None,
    });
    let of_records = batch.records.iter().map(|(record, _)| record.delivery.key.endpoint_id);
    of_records.chain(of_sketches).collect()
}

async fn lock(tx: &Tx, batch: &RecordBatch) -> Result<()> {
    let ids: BTreeSet<Uuid> =
        batch.records.iter().map(|(record, _)| record.delivery.application_id.into()).collect();
    let ids: Column<Uuid> = ids.into_iter().collect();
    tx.all(sql::APPLICATION_LOCK, params![ids], |_| Ok(())).await.map(drop)
}

struct Run<'b> {
    batch: &'b RecordBatch,
    lanes: BTreeMap<EndpointId, Seen>,
    /// By minute.
    tallies: BTreeMap<i64, Tally>,
    /// Of each record, whether its lease was in force.
    counted: Vec<bool>,
    ended: Vec<Ended>,
    notices: Vec<(EndpointId, LaneNotice)>,
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

/// A lease: who held which delivery under which number.
type Hold = (DeliveryKey, u32, WorkerId);

/// What becomes of the deliveries, as columns. A lease that is named twice moves once.
#[derive(Default)]
struct Moves {
    named: BTreeSet<Hold>,
    /// How a delivery ends, or that it waits, by record.
    ends: Vec<Option<(i64, Option<Cause>)>>,
    end: Vec<Hold>,
    wait: Vec<Hold>,
    states: Vec<i64>,
    due: Vec<i64>,
    classes: Vec<i64>,
    statuses: Vec<Option<i64>>,
}

fn hold(record: &Record) -> Hold {
    let delivery = &record.delivery;
    (delivery.key, delivery.lease.number, delivery.lease.worker_id)
}

impl Moves {
    fn end(&mut self, record: &Record, state: i64, cause: Option<Cause>) {
        self.ends.push(Some((state, cause)));
        if self.named.insert(hold(record)) {
            self.end.push(hold(record));
        }
    }

    fn wait(&mut self, record: &Record, state: i64, due_at: Timestamp) {
        self.ends.push(None);
        if !self.named.insert(hold(record)) {
            return;
        }
        let class = Class::of_attempt(record.delivery.plan_attempt.saturating_add(1));
        self.wait.push(hold(record));
        self.states.push(state);
        self.due.push(micros(due_at));
        self.classes.push(class as i64);
        self.statuses.push(record.outcome.status().map(i64::from));
    }

    /// Moves deliveries on whose lease is in force; tells which those were.
    async fn write(&self, tx: &Tx) -> Result<BTreeSet<(DeliveryKey, u32)>> {
        let (ended, waits) = tokio::try_join!(biased; self.write_ends(tx), self.write_waits(tx))?;
        Ok(ended.into_iter().chain(waits).collect())
    }

    async fn write_ends(&self, tx: &Tx) -> Result<Vec<(DeliveryKey, u32)>> {
        if self.end.is_empty() {
            return Ok(Vec::new());
        }
        let (endpoints, messages, numbers, workers) = columns(&self.end);
        let row = params![endpoints, messages, numbers, workers];
        tx.all(sql::DELIVERY_END, row, moved).await
    }

    async fn write_waits(&self, tx: &Tx) -> Result<Vec<(DeliveryKey, u32)>> {
        if self.wait.is_empty() {
            return Ok(Vec::new());
        }
        let (endpoints, messages, numbers, workers) = columns(&self.wait);
        let column = |values: &Vec<i64>| values.iter().copied().collect::<Column<i64>>();
        let statuses: Column<Option<i64>> = self.statuses.iter().copied().collect();
        let (states, due, classes) =
            (column(&self.states), column(&self.due), column(&self.classes));
        let row = params![endpoints, messages, numbers, workers, states, due, classes, statuses];
        tx.all(sql::DELIVERY_WAIT, row, moved).await
    }
}

fn columns(holds: &[Hold]) -> (Column<Uuid>, Column<Uuid>, Column<i64>, Column<Uuid>) {
    (
        holds.iter().map(|(key, _, _)| key.endpoint_id.into()).collect(),
        holds.iter().map(|(key, _, _)| key.message_id.into()).collect(),
        holds.iter().map(|(_, number, _)| i64::from(*number)).collect(),
        holds.iter().map(|(_, _, worker)| (*worker).into()).collect(),
    )
}

fn moved(row: &mut rows::Fields<'_>) -> Result<(DeliveryKey, u32)> {
    Ok((DeliveryKey { endpoint_id: row.id()?, message_id: row.id()? }, row.number()?))
}

impl<'b> Run<'b> {
    fn new(batch: &'b RecordBatch, lanes: BTreeMap<EndpointId, Lane>) -> Self {
        let seen = |lane| Seen { lane, records: Vec::new(), due_at: None };
        Self {
            batch,
            lanes: lanes.into_iter().map(|(id, lane)| (id, seen(lane))).collect(),
            tallies: BTreeMap::new(),
            counted: Vec::with_capacity(batch.records.len()),
            ended: Vec::new(),
            notices: Vec::new(),
            recorded: Recorded::default(),
        }
    }

    fn seen(&mut self, id: EndpointId) -> Result<&mut Seen> {
        let seen = self.lanes.get_mut(&id);
        seen.ok_or_else(|| Error::new(Kind::Internal, "a record without a lane"))
    }

    /// What becomes of each delivery, if its lease is in force.
    fn moves(&mut self) -> Result<Moves> {
        let mut moves = Moves::default();
        for (record, _) in &self.batch.records {
            let state = self.seen(record.delivery.key.endpoint_id)?.lane.state;
            match (&record.verdict, state) {
                (Verdict::Delivered, _) => moves.end(record, rows::DELIVERED, None),
                (Verdict::Dead(cause), _) => {
                    moves.end(record, rows::DEAD_LETTER, Some(cause.clone()));
                }
                (Verdict::RetryAt(_), LaneState::Deleted) => {
                    moves.end(record, rows::CANCELLED, Some(Cause::EndpointDeleted));
                }
                (Verdict::RetryAt(due_at), _) => moves.wait(record, state.waits_as(), *due_at),
            }
        }
        Ok(moves)
    }

    /// Counts what was in force, and folds it into the lanes' health in the order in which the
    /// attempts ended.
    fn fold(&mut self, moves: &Moves, mut in_force: BTreeSet<(DeliveryKey, u32)>) -> Result<()> {
        for (index, ((record, _), end)) in self.batch.records.iter().zip(&moves.ends).enumerate() {
            let delivery = &record.delivery;
            let counts = in_force.remove(&(delivery.key, delivery.lease.number));
            self.counted.push(counts);
            if !counts {
                self.recorded.stale.push(delivery.key);
                continue;
            }
            if let Some((state, cause)) = end {
                self.ended.push(ended(record, *state, cause.clone()));
            }
            let seen = self.seen(delivery.key.endpoint_id)?;
            seen.records.push(index);
            if let Verdict::RetryAt(due_at) = record.verdict {
                seen.due_at = Some(seen.due_at.map_or(due_at, |earlier| earlier.min(due_at)));
            }
            let minute = minute_of(record.ended_at);
            let tally = self.tallies.entry(minute).or_insert(Tally { minute, ..Tally::default() });
            tally.count(record);
        }
        self.fold_sketches();
        for (id, seen) in &mut self.lanes {
            let records = &self.batch.records;
            seen.records.sort_by_key(|index| records[*index].0.ended_at);
            for index in &seen.records {
                let record = &records[*index].0;
                let health = &mut seen.lane.health;
                let observed = observe(record, health);
                for event in health.settle(&self.batch.rules, &observed, record.roll) {
                    let notice = LaneNotice { event, at: record.ended_at, roll: record.roll };
                    self.notices.push((*id, notice));
                }
            }
        }
        Ok(())
    }

    fn fold_sketches(&mut self) {
        for sketch in &self.batch.sketches {
            if let Scope::EndpointLatency(id) = sketch.scope
                && sketch.p95_ms > 0
                && let Some(seen) = self.lanes.get_mut(&id)
            {
                seen.lane.health.p95_ms = sketch.p95_ms;
            }
        }
    }

    /// Whether an endpoint that is in use is to be disabled.
    fn disables(&self) -> bool {
        self.notices.iter().any(|(id, notice)| {
            let in_use = |seen: &Seen| seen.lane.state == LaneState::InUse;
            ends(notice.event) && self.lanes.get(id).is_some_and(in_use)
        })
    }

    /// Lanes whose next due time depends on whether something waits.
    fn asked(&self) -> Vec<EndpointId> {
        let asked = self.lanes.values().filter(|seen| {
            let health = &seen.lane.health;
            let is_closed = health.breaker.position == Position::Closed;
            seen.lane.state == LaneState::InUse && (!is_closed || health.ramp.is_some())
        });
        asked.map(|seen| seen.lane.endpoint_id).collect()
    }

    /// When the lanes are due, now that their deliveries moved and their health changed.
    fn next_due(&mut self, waits: &BTreeSet<EndpointId>) {
        let now = self.batch.now;
        for (id, Seen { lane, due_at, .. }) in &mut self.lanes {
            if lane.state != LaneState::InUse {
                continue;
            }
            if let Some(due_at) = *due_at {
                lane.next_due_at = Some(lane.next_due_at.map_or(due_at, |next| next.min(due_at)));
                self.recorded.due_now |= due_at <= now;
            }
            match (lane.health.breaker.position, waits.contains(id)) {
                // As soon as a probe may go, whatever its plan: that is how a recovery is noticed.
                (Position::Open { until } | Position::HalfOpen { probe_until: until }, true) => {
                    lane.next_due_at = Some(until);
                }
                (Position::Closed, true) if lane.health.ramp.is_some() => {
                    lane.next_due_at = Some(now);
                    self.recorded.due_now = true;
                }
                (Position::Closed, false) => lane.health.ramp = None,
                _ => {}
            }
        }
    }

    /// Does what an event asks for, and leaves word of it.
    async fn tell(&mut self, tx: &Tx, id: EndpointId, notice: &LaneNotice) -> Result<()> {
        let lane = &mut self.seen(id)?.lane;
        match (ends(notice.event), lane.state) {
            (true, LaneState::InUse) => tx.disable(lane, notice).await?,
            // Disabled or deleted already: there is nothing to say.
            (true, _) => return Ok(()),
            (false, _) => tx.notice(lane, notice).await?,
        }
        let event = LaneEvent {
            application_id: lane.application_id,
            endpoint_id: lane.endpoint_id,
            event: notice.event,
        };
        self.recorded.events.push(event);
        Ok(())
    }

    fn finish(self) -> Recorded {
        let lanes = self.lanes.into_values().map(|seen| (seen.lane.endpoint_id, seen.lane.health));
        Recorded { lanes: lanes.collect(), ..self.recorded }
    }
}

const fn ends(event: Event) -> bool {
    matches!(event, Event::Exhausted { .. } | Event::Gone)
}

fn ended(record: &Record, state: i64, cause: Option<Cause>) -> Ended {
    let delivery = &record.delivery;
    Ended {
        key: delivery.key,
        application_id: delivery.application_id,
        state,
        cause,
        attempts: delivery.attempt,
        lease_number: delivery.lease.number,
        accepted_at: delivery.accepted_at,
        ended_at: record.ended_at,
        last_status: record.outcome.status(),
    }
}

async fn store_sketches(tx: &Tx, batch: &RecordBatch) -> Result<()> {
    // Of two sketches of one window the later counts.
    let sketches: BTreeMap<(i64, Uuid, i64), &[u8]> = batch
        .sketches
        .iter()
        .map(|sketch| {
            let (scope, endpoint) = match sketch.scope {
                Scope::EndpointLatency(id) => (0, id.into()),
                Scope::DeliveryTime => (1, Uuid::NIL),
            };
            ((scope, endpoint, micros(sketch.start)), sketch.sketch.as_slice())
        })
        .collect();
    if sketches.is_empty() {
        return Ok(());
    }
    let scopes: Column<i64> = sketches.keys().map(|(scope, _, _)| *scope).collect();
    let endpoints: Column<Uuid> = sketches.keys().map(|(_, endpoint, _)| *endpoint).collect();
    let starts: Column<i64> = sketches.keys().map(|(_, _, start)| *start).collect();
    let bytes: Column<&[u8]> = sketches.values().copied().collect();
    let row = params![scopes, endpoints, starts, Uuid::from(batch.worker_id), bytes];
    tx.run(sql::SKETCH_STORE, row).await.map(drop)
}

/// Keeps the attempts.
async fn keep(tx: &Tx, batch: &RecordBatch, in_force: &[bool]) -> Result<()> {
    if batch.records.is_empty() {
        return Ok(());
    }
    let mut columns = Attempts::default();
    for ((record, endpoint), in_force) in batch.records.iter().zip(in_force) {
        columns.add(record, endpoint, *in_force);
    }
    columns.insert(tx).await
}

/// Columns of attempts.
#[derive(Default)]
struct Attempts<'r> {
    ids: [Vec<Uuid>; 3],
    numbers: Vec<i64>,
    triggers: Vec<i64>,
    started: Vec<i64>,
    urls: Vec<&'r str>,
    statuses: Vec<Option<i64>>,
    retry_after: Vec<Option<&'r [u8]>>,
    bodies: Vec<Option<&'r [u8]>>,
    cut: Vec<bool>,
    failures: [Vec<Option<&'r str>>; 3],
    spans: [Vec<Option<i64>>; 4],
    totals: Vec<i64>,
    remotes: Vec<Option<String>>,
    verdicts: Vec<&'r str>,
    next: Vec<Option<i64>>,
}

impl<'r> Attempts<'r> {
    fn add(&mut self, record: &'r Record, endpoint: &'r Endpoint, in_force: bool) {
        let delivery = &record.delivery;
        let (response, failure) = match &record.outcome.answer {
            Answer::Response(response) => (Some(response), None),
            Answer::Failure(failure) => (None, Some(failure)),
        };
        let timing = &record.outcome.timing;
        let ids = [
            delivery.key.message_id.into(),
            record.attempt_id.into(),
            delivery.key.endpoint_id.into(),
        ];
        push(&mut self.ids, ids);
        self.numbers.push(delivery.attempt.into());
        self.triggers.push(rows::trigger_column(delivery.trigger));
        self.started.push(micros(record.started_at));
        self.urls.push(endpoint.url.as_str());
        self.statuses.push(response.map(|response| response.status.into()));
        let retry_after = response.and_then(|response| response.retry_after.as_deref());
        self.retry_after.push(retry_after.map(str::as_bytes));
        let body = response.map(|response| &response.body[..]);
        self.bodies.push(body.filter(|body| !body.is_empty()));
        self.cut.push(response.is_some_and(|response| response.body_cut));
        let texts = [
            failure.map(|failure| failure.kind.as_str()),
            failure.map(|failure| failure.phase.as_str()),
            failure.map(|failure| failure.detail.as_str()),
        ];
        push(&mut self.failures, texts);
        let spans = [timing.dns, timing.connect, timing.tls, timing.first_byte];
        push(&mut self.spans, spans.map(|span| span.map(rows::micros)));
        self.totals.push(rows::micros(timing.total));
        self.remotes.push(record.outcome.remote.map(|address| address.to_string()));
        self.verdicts.push(if in_force { record.verdict.as_str() } else { "stale" });
        self.next.push(match record.verdict {
            Verdict::RetryAt(due_at) if in_force => Some(micros(due_at)),
            _ => None,
        });
    }

    async fn insert(self, tx: &Tx) -> Result<()> {
        let [messages, ids, endpoints] = self.ids.map(Column);
        let [failures, phases, details] = self.failures.map(Column);
        let [dns, connect, tls, first_byte] = self.spans.map(Column);
        let row = params![
            messages,
            ids,
            endpoints,
            Column(self.numbers),
            Column(self.triggers),
            Column(self.started),
            Column(self.urls),
            Column(self.statuses),
            Column(self.retry_after),
            Column(self.bodies),
            Column(self.cut),
            failures,
            phases,
            details,
            dns,
            connect,
            tls,
            first_byte,
            Column(self.totals),
            Column(self.remotes),
            Column(self.verdicts),
            Column(self.next),
        ];
        tx.run(sql::ATTEMPT_INSERT, row).await.map(drop)
    }
}

fn push<T, const N: usize>(columns: &mut [Vec<T>; N], values: [T; N]) {
    for (column, value) in columns.iter_mut().zip(values) {
        column.push(value);
    }
}
