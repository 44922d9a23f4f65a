//! Claims: which waiting deliveries go now, under which leases.
//!
//! Lanes are asked in the order in which they became due, so the one that waited longest goes
//! first; a lane that gave its share goes to the back. A lane that may not give anything costs one
//! update of its row, however much waits in it.

use super::lanes::sql;
use super::pick::{earliest, pick};
use super::writer::Tx;
use crate::lanes::{Ended, Lane, LaneState, Tally, last_class, minute_of};
use crate::outbox::{Claim, Claimed, ClaimedLane};
use crate::pick::{Terms, Waiting};
use crate::rows;
use crate::{Error, Kind, Result};
use posthaste_core::delivery::{Cause, DeliveryKey, Lease, LeasedDelivery, Trigger};
use posthaste_core::endpoint::Endpoint;
use posthaste_core::id::{ApplicationId, EndpointId, MessageId};
use posthaste_core::lane::Admission;
use posthaste_core::limiter::{LimiterState, RateLimit};
use posthaste_core::limits::ATTEMPTS_MAX;
use posthaste_core::message::Message;
use posthaste_core::time::Timestamp;
use rusqlite::params;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Lanes looked at by one claim.
const LANES_MAX: usize = 1_024;
/// Payload bytes handed out by one claim; one delivery goes whatever its size.
const BYTES_MAX: usize = 32 * 1024 * 1024;
/// A lane whose ramp is full is looked at again after this long; a record from it comes sooner.
const RAMP_RECHECK: Duration = Duration::from_secs(1);

/// Runs a claim.
pub(super) fn claim(tx: &mut Tx<'_>, claim: &Claim) -> Result<Claimed> {
    tx.see_worker(claim.worker_id, claim.now)?;
    let mut run = Run {
        claim,
        full: claim.full.iter().copied().collect(),
        exhausted: Vec::new(),
        limits: BTreeMap::new(),
        messages: BTreeMap::new(),
        room: claim.deliveries_max,
        bytes: 0,
        failed: 0,
    };
    let lanes_max = LANES_MAX + claim.full.len();
    let due = tx.db.all(
        sql::LANES_DUE,
        params![claim.now.as_micros(), i64::try_from(lanes_max).unwrap_or(i64::MAX)],
        Lane::read,
    )?;
    let mut claimed = Claimed::default();
    for lane in due {
        if run.room == 0 || run.bytes >= BYTES_MAX {
            break;
        }
        claimed.lanes.extend(run.visit(tx, lane)?);
    }
    run.finish(tx)?;
    claimed.next_due_at = run.next_due_at(tx)?;
    Ok(claimed)
}

/// A claim under way.
struct Run<'c> {
    claim: &'c Claim,
    /// Room left of lanes that are (nearly) full at the worker.
    full: BTreeMap<EndpointId, u32>,
    /// Lanes of `full` that have no room (left).
    exhausted: Vec<EndpointId>,
    /// Limiters of applications, with what is in force.
    limits: BTreeMap<ApplicationId, Option<(RateLimit, LimiterState)>>,
    /// Payloads already loaded: the deliveries of one message share one.
    messages: BTreeMap<MessageId, Option<Arc<Message>>>,
    room: usize,
    bytes: usize,
    /// Deliveries given up.
    failed: u32,
}

impl Run<'_> {
    fn visit(&mut self, tx: &mut Tx<'_>, mut lane: Lane) -> Result<Option<ClaimedLane>> {
        let now = self.claim.now;
        if lane.state != LaneState::InUse || lane.sweeping {
            lane.next_due_at = None;
            self.set_due(tx, &lane)?;
            return Ok(None);
        }
        let room = match self.full.get(&lane.endpoint_id) {
            Some(0) => {
                self.exhausted.push(lane.endpoint_id);
                return Ok(None);
            }
            Some(room) => usize::try_from(*room).unwrap_or(usize::MAX),
            None => self.claim.lane_max,
        };
        let room = room.min(self.claim.lane_max).min(self.room);
        let Some(terms) = self.admit(tx, &mut lane, room)? else { return Ok(None) };
        let endpoint = endpoint(tx, &lane)?;
        let mut candidates = pick(tx, lane.endpoint_id, terms, now)?;
        let wanted = candidates.len();
        let retry_at = self.limit(tx, &mut lane, &endpoint, &mut candidates)?;
        let deliveries = self.lease(tx, &mut lane, terms, candidates)?;
        self.room -= deliveries.len();
        let own_room = self.full.get(&lane.endpoint_id).copied().map(usize::try_from);
        if own_room.is_some_and(|own| own.is_ok_and(|own| deliveries.len() >= own)) {
            self.exhausted.push(lane.endpoint_id);
        }
        lane.next_due_at = self.next_of(tx, &mut lane, terms, wanted)?;
        if let (Some(retry_at), Some(next)) = (retry_at, lane.next_due_at) {
            lane.next_due_at = Some(next.max(retry_at));
        }
        tx.store_lane(&lane)?;
        if deliveries.is_empty() {
            return Ok(None);
        }
        Ok(Some(ClaimedLane { endpoint, health: lane.health, deliveries }))
    }

    fn set_due(&self, tx: &Tx<'_>, lane: &Lane) -> Result<()> {
        let next = lane.next_due_at.map(Timestamp::as_micros);
        tx.db.run(sql::LANE_DUE_SET, params![lane.endpoint_id.as_bytes(), next])?;
        Ok(())
    }

    /// What the lane's health allows. When that is nothing, the lane is put off until then.
    fn admit(&self, tx: &Tx<'_>, lane: &mut Lane, room: usize) -> Result<Option<Terms>> {
        let now = self.claim.now;
        match lane.health.admit(&self.claim.rules, now) {
            Admission::Wait { until } => {
                // Never now: a claim must not find the lane again at once.
                lane.next_due_at = Some(until.max(now.after(Duration::from_millis(1))));
                self.set_due(tx, lane)?;
                Ok(None)
            }
            Admission::Probe => {
                Ok(Some(Terms { room: 1, ramped: false, early: true, probe: true }))
            }
            Admission::Go { in_flight_max, drain } => {
                let mut terms = Terms { room, ramped: false, early: drain, probe: false };
                if lane.health.ramp.is_some() {
                    let leased: i64 =
                        tx.db.get(sql::LANE_LEASED, [lane.endpoint_id.as_bytes()], |row| {
                            row.int()
                        })?;
                    let open = i64::from(in_flight_max).saturating_sub(leased).max(0);
                    let open = usize::try_from(open).unwrap_or(usize::MAX);
                    terms.ramped = open <= room;
                    terms.room = room.min(open);
                }
                if terms.room == 0 {
                    lane.next_due_at = Some(now.after(RAMP_RECHECK));
                    self.set_due(tx, lane)?;
                    return Ok(None);
                }
                Ok(Some(terms))
            }
        }
    }

    /// Takes tokens for the candidates and drops those without one. Returns when the next token
    /// comes, if some were dropped.
    fn limit(
        &mut self,
        tx: &Tx<'_>,
        lane: &mut Lane,
        endpoint: &Endpoint,
        candidates: &mut Vec<Waiting>,
    ) -> Result<Option<Timestamp>> {
        let now = self.claim.now;
        let want = u32::try_from(candidates.len()).unwrap_or(u32::MAX);
        let mut left = want;
        let mut retry_at = None;
        let own = endpoint.rate_limit();
        if let Some(limit) = own {
            let granted = lane.health.limiter.take(limit, left, now);
            if granted.count < left {
                left = granted.count;
                retry_at = Some(granted.retry_at);
            }
        }
        if let Some((limit, state)) = self.application_limit(tx, lane.application_id)? {
            let granted = state.take(*limit, left, now);
            if granted.count < left {
                if let Some(own) = own {
                    lane.health.limiter.put_back(own, left - granted.count);
                }
                left = granted.count;
                retry_at = retry_at.max(Some(granted.retry_at));
            }
        }
        candidates.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        Ok(retry_at)
    }

    fn application_limit(
        &mut self,
        tx: &Tx<'_>,
        id: ApplicationId,
    ) -> Result<Option<&mut (RateLimit, LimiterState)>> {
        use std::collections::btree_map::Entry;
        match self.limits.entry(id) {
            Entry::Occupied(entry) => Ok(entry.into_mut().as_mut()),
            Entry::Vacant(entry) => {
                let found = tx.db.one(sql::APPLICATION_LIMIT, [id.as_bytes()], |row| {
                    let rate: Option<u16> = row.opt_number()?;
                    let state = LimiterState { next_at: row.time()? };
                    Ok(rate.map(|rate| (RateLimit::per_second(rate), state)))
                })?;
                Ok(entry.insert(found.flatten()).as_mut())
            }
        }
    }

    /// Leases the candidates; those that cannot be sent any more end.
    fn lease(
        &mut self,
        tx: &mut Tx<'_>,
        lane: &mut Lane,
        terms: Terms,
        candidates: Vec<Waiting>,
    ) -> Result<Vec<(LeasedDelivery, Arc<Message>)>> {
        let mut leased = Vec::with_capacity(candidates.len());
        for waiting in candidates {
            if self.bytes >= BYTES_MAX {
                break;
            }
            let message = self.message(tx, lane.endpoint_id, waiting.message_id)?;
            let cause = match &message {
                _ if waiting.attempts >= ATTEMPTS_MAX => {
                    Some(Cause::Exhausted(last_class(waiting.last_status)))
                }
                Some(message) if message.payload.is_some() => None,
                _ => Some(Cause::PayloadGone),
            };
            match (cause, message) {
                (None, Some(message)) => {
                    self.bytes += message.payload.as_ref().map_or(0, bytes::Bytes::len);
                    leased.push((self.lease_one(tx, lane, terms, &waiting)?, message));
                }
                (cause, _) => {
                    self.give_up(tx, lane, &waiting, cause.unwrap_or(Cause::PayloadGone))?;
                }
            }
        }
        Ok(leased)
    }

    fn lease_one(
        &self,
        tx: &Tx<'_>,
        lane: &mut Lane,
        terms: Terms,
        waiting: &Waiting,
    ) -> Result<LeasedDelivery> {
        let (worker_id, now) = (self.claim.worker_id, self.claim.now);
        let until = now.after(self.claim.lease_for);
        let lease = Lease { worker_id, number: waiting.lease_number + 1, until };
        // A probe that is sent before its time is an extra attempt: the plan stays as it was.
        let extra = terms.probe && waiting.due_at > now && waiting.trigger == Trigger::Scheduled;
        let (trigger, planned_at) = match extra {
            true => (Trigger::Manual, Some(waiting.due_at)),
            false => (waiting.trigger, waiting.planned_at),
        };
        let planned = u32::from(trigger == Trigger::Scheduled);
        let delivery = LeasedDelivery {
            key: DeliveryKey { endpoint_id: lane.endpoint_id, message_id: waiting.message_id },
            application_id: lane.application_id,
            lease,
            attempt: waiting.attempts + 1,
            plan_attempt: waiting.plan_attempts + planned,
            class: waiting.class,
            trigger,
            planned_at,
            accepted_at: waiting.accepted_at,
            probe: terms.probe,
        };
        tx.db.run(
            sql::DELIVERY_LEASE,
            params![
                lane.endpoint_id.as_bytes(),
                waiting.message_id.as_bytes(),
                lease.number,
                worker_id.as_bytes(),
                until.as_micros(),
                delivery.attempt,
                delivery.plan_attempt,
                rows::trigger_column(trigger),
                planned_at.map(Timestamp::as_micros),
            ],
        )?;
        if terms.probe {
            lane.health.probe(until);
        }
        Ok(delivery)
    }

    fn give_up(&mut self, tx: &Tx<'_>, lane: &Lane, waiting: &Waiting, cause: Cause) -> Result<()> {
        let key = DeliveryKey { endpoint_id: lane.endpoint_id, message_id: waiting.message_id };
        self.failed += 1;
        tx.end(&Ended {
            key,
            application_id: lane.application_id,
            state: rows::DEAD_LETTER,
            cause: Some(cause),
            attempts: waiting.attempts,
            lease_number: waiting.lease_number,
            accepted_at: waiting.accepted_at,
            ended_at: self.claim.now,
            last_status: waiting.last_status,
        })
    }

    fn message(
        &mut self,
        tx: &Tx<'_>,
        endpoint: EndpointId,
        id: MessageId,
    ) -> Result<Option<Arc<Message>>> {
        if let Some(message) = self.messages.get(&id) {
            return Ok(message.clone());
        }
        let key = params![endpoint.as_bytes(), id.as_bytes()];
        let message = tx.db.one(sql::CLAIM_MESSAGE, key, rows::message)?.map(Arc::new);
        self.messages.insert(id, message.clone());
        Ok(message)
    }

    /// When the lane is due again; ends a ramp that has nothing left to pull forward.
    fn next_of(
        &self,
        tx: &Tx<'_>,
        lane: &mut Lane,
        terms: Terms,
        wanted: usize,
    ) -> Result<Option<Timestamp>> {
        let now = self.claim.now;
        let Some(earliest) = earliest(tx, lane.endpoint_id)? else {
            lane.health.ramp = None;
            return Ok(None);
        };
        if let Admission::Wait { until } = lane.health.admit(&self.claim.rules, now) {
            return Ok(Some(until));
        }
        if terms.early && !terms.probe {
            if !tx.lane_waits(lane.endpoint_id, now)? {
                lane.health.ramp = None;
                return Ok(Some(earliest));
            }
            // More waits than fits the ramp; what comes back makes room for it.
            let full = terms.ramped && wanted >= terms.room;
            return Ok(Some(if full { now.after(RAMP_RECHECK) } else { now }));
        }
        // At the back of those that are due: others were due before now.
        Ok(Some(earliest.max(now)))
    }

    fn finish(&self, tx: &Tx<'_>) -> Result<()> {
        for (id, limit) in &self.limits {
            if let Some((_, state)) = limit {
                let state = state.next_at.as_micros();
                tx.db.run(sql::APPLICATION_LIMIT_STORE, params![id.as_bytes(), state])?;
            }
        }
        if self.failed > 0 {
            let minute = minute_of(self.claim.now);
            let tally = Tally { minute, failed: self.failed, ..Tally::default() };
            tx.add_tally(self.claim.worker_id, &tally)?;
        }
        Ok(())
    }

    /// When a lane that this worker has room for is due.
    fn next_due_at(&self, tx: &Tx<'_>) -> Result<Option<Timestamp>> {
        let limit = i64::try_from(self.full.len() + 1).unwrap_or(i64::MAX);
        let next: Vec<(EndpointId, Timestamp)> =
            tx.db.all(sql::LANES_NEXT, [limit], |row| Ok((row.id()?, row.time()?)))?;
        let excluded = |id: &EndpointId| {
            self.exhausted.contains(id) || self.full.get(id).is_some_and(|room| *room == 0)
        };
        Ok(next.into_iter().find(|(id, _)| !excluded(id)).map(|(_, at)| at))
    }
}

/// The endpoint of a lane as it is now.
fn endpoint(tx: &mut Tx<'_>, lane: &Lane) -> Result<Arc<Endpoint>> {
    if let Some((version, endpoint)) = tx.memory.endpoints.get(&lane.endpoint_id)
        && *version == lane.endpoint_version
    {
        return Ok(Arc::clone(endpoint));
    }
    let id = lane.endpoint_id.as_bytes();
    let endpoint = tx.db.one(sql::CLAIM_ENDPOINT, [id], rows::endpoint)?;
    let endpoint =
        endpoint.ok_or_else(|| Error::new(Kind::Internal, "a lane without its endpoint"))?;
    let endpoint = Arc::new(endpoint);
    tx.memory.keep(lane.endpoint_version, Arc::clone(&endpoint));
    Ok(endpoint)
}
