//! Claims: which waiting deliveries go now, under which leases.
//!
//! Lanes are asked in the order in which they became due, so the one that waited longest goes
//! first; a lane that gave its share goes to the back. A lane that may not give anything costs one
//! update of its row, however much waits in it. Lanes are locked a few at a time, and those that
//! another process works on are passed over: nobody waits here but for a limiter.

use super::Core;
use super::db::{Column, Tx, Uuid, params};
use super::lanes::{micros, sql};
use super::pick::{Admitted, earliest, find_waiting, leased, limits, pick_probe, write_leases};
use crate::lanes::{Ended, Lane, LaneState, Tally, last_class, minute_of};
use crate::outbox::{Claim, Claimed, ClaimedLane};
use crate::pick::{Terms, Waiting, share};
use crate::rows;
use crate::{Error, Kind, Result};
use posthaste_core::delivery::{Cause, DeliveryKey, Lease, LeasedDelivery, Trigger};
use posthaste_core::id::{ApplicationId, EndpointId, MessageId};
use posthaste_core::lane::Admission;
use posthaste_core::limiter::{LimiterState, RateLimit};
use posthaste_core::limits::ATTEMPTS_MAX;
use posthaste_core::message::Message;
use posthaste_core::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Lanes looked at by one claim.
const LANES_MAX: usize = 1_024;
/// How often the room of what was given up is given on; the lanes that are left stay due.
const ROUNDS_MAX: usize = 16;
/// Lanes locked at once.
const LANES_AT_ONCE_MIN: usize = 8;
const LANES_AT_ONCE_MAX: usize = 256;
/// Payload bytes handed out by one claim; one delivery goes whatever its size.
const BYTES_MAX: usize = 32 * 1024 * 1024;
/// A lane whose ramp is full is looked at again after this long; a record from it comes sooner.
const RAMP_RECHECK: Duration = Duration::from_secs(1);
/// When everything that is due is locked by others, it is looked at again after this long.
const BUSY_RECHECK: Duration = Duration::from_millis(5);

/// Runs a claim and commits it.
pub(super) async fn claim(core: &Core, tx: &Tx, claim: &Claim) -> Result<Claimed> {
    let mut run = Run::new(core, claim);
    let mut claimed = Claimed::default();
    let mut at_once = (2 * run.room / claim.lane_max.max(1)).max(LANES_AT_ONCE_MIN);
    let mut due = run.due(tx, at_once).await?;
    let mut ran_dry = due.is_empty();
    while !due.is_empty() {
        ran_dry = due.len() < at_once;
        run.looked_at.extend(due.iter().map(|lane| lane.endpoint_id));
        claimed.lanes.extend(run.visit(tx, due).await?);
        let is_full = run.room == 0 || run.bytes >= BYTES_MAX;
        if is_full || ran_dry || run.looked_at.len() >= LANES_MAX {
            break;
        }
        at_once = (at_once * 4).min(LANES_AT_ONCE_MAX);
        due = run.due(tx, at_once).await?;
    }
    let next = run.finish(tx).await?;
    // All that is due is with others, who are about to be done with it.
    let others = ran_dry && run.looked_at.is_empty();
    let busy_until = claim.now.after(BUSY_RECHECK);
    let is_busy = |at: Timestamp| others && at <= claim.now;
    claimed.next_due_at = next.map(|at| if is_busy(at) { busy_until } else { at });
    Ok(claimed)
}

/// A claim under way.
struct Run<'c> {
    core: &'c Core,
    claim: &'c Claim,
    /// Room left of lanes that are (nearly) full at the worker.
    full: BTreeMap<EndpointId, u32>,
    /// Lanes that have no room (left).
    exhausted: BTreeSet<EndpointId>,
    looked_at: Vec<EndpointId>,
    /// Limiters of applications that have one, with their state; and who has been asked for.
    limits: BTreeMap<ApplicationId, (RateLimit, LimiterState)>,
    limits_asked: BTreeSet<ApplicationId>,
    /// Payloads already loaded: the deliveries of one message share one.
    messages: BTreeMap<MessageId, Loaded>,
    room: usize,
    bytes: usize,
    /// What is written at the end: lanes, lanes that are only put off.
    lanes: Vec<Lane>,
    put_off: Vec<(EndpointId, Option<Timestamp>)>,
    /// Deliveries given up.
    failed: u32,
}

enum Loaded {
    Message(Arc<Message>),
    /// It has a payload, but what was loaded before was enough.
    Later,
}

impl<'c> Run<'c> {
    fn new(core: &'c Core, claim: &'c Claim) -> Self {
        let full: BTreeMap<EndpointId, u32> = claim.full.iter().copied().collect();
        Self {
            core,
            claim,
            exhausted: full.iter().filter(|(_, room)| **room == 0).map(|(id, _)| *id).collect(),
            full,
            looked_at: Vec::new(),
            limits: BTreeMap::new(),
            limits_asked: BTreeSet::new(),
            messages: BTreeMap::new(),
            room: claim.deliveries_max,
            bytes: 0,
            lanes: Vec::new(),
            put_off: Vec::new(),
            failed: 0,
        }
    }

    /// The next lanes that are due, locked.
    async fn due(&self, tx: &Tx, count: usize) -> Result<Vec<Lane>> {
        let not: Column<Uuid> =
            self.exhausted.iter().chain(&self.looked_at).map(|id| (*id).into()).collect();
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        tx.all(sql::LANES_DUE, params![micros(self.claim.now), count, not], Lane::read).await
    }

    async fn visit(&mut self, tx: &Tx, due: Vec<Lane>) -> Result<Vec<ClaimedLane>> {
        let (leased, endpoints) = tokio::try_join!(biased;
            leased(tx, &due),
            self.core.endpoints_of(tx, &due),
        )?;
        let mut admitted = Vec::new();
        for lane in due {
            let endpoint = endpoints.get(&lane.endpoint_id).cloned();
            let Some(terms) = self.admit(&lane, &leased) else { continue };
            let endpoint = endpoint
                .ok_or_else(|| Error::new(Kind::Internal, "a lane without its endpoint"))?;
            admitted.push(Admitted::new(lane, endpoint, terms));
        }
        if admitted.is_empty() {
            return Ok(Vec::new());
        }
        let applications: BTreeSet<_> =
            admitted.iter().map(|lane| lane.lane.application_id).collect();
        let asked: Vec<_> = applications.difference(&self.limits_asked).copied().collect();
        let now = self.claim.now;
        let (limits, ()) = tokio::try_join!(biased;
            limits(tx, &asked, self.limits_asked.last().copied()),
            find_waiting(tx, &mut admitted, now),
        )?;
        self.limits.extend(limits.locked);
        self.limits_asked.extend(asked);
        // Who has their limiter is about to be done with it.
        admitted.retain(|lane| !limits.busy.contains(&lane.lane.application_id));
        let mut admitted = admitted.into_iter();
        let mut claimed = Vec::new();
        // Deliveries that are given up make room again, for the lanes that are left.
        for _ in 0..ROUNDS_MAX {
            let chosen = self.choose_all(&mut admitted);
            if chosen.is_empty() {
                break;
            }
            claimed.extend(self.take(tx, chosen).await?);
        }
        Ok(claimed)
    }

    /// What goes next of as many lanes as there is room for.
    fn choose_all(&mut self, admitted: &mut impl Iterator<Item = Admitted>) -> Vec<Admitted> {
        let mut chosen = Vec::new();
        while self.room > 0
            && self.bytes < BYTES_MAX
            && let Some(mut lane) = admitted.next()
        {
            self.choose(&mut lane);
            chosen.push(lane);
        }
        chosen
    }

    async fn take(&mut self, tx: &Tx, mut chosen: Vec<Admitted>) -> Result<Vec<ClaimedLane>> {
        self.load_messages(tx, &chosen).await?;
        self.lease(tx, &mut chosen).await?;
        Ok(self.settle(chosen))
    }

    /// What the lane's health allows. When that is nothing, the lane is put off until then.
    fn admit(&mut self, lane: &Lane, leased: &BTreeMap<EndpointId, i64>) -> Option<Terms> {
        let now = self.claim.now;
        if lane.state != LaneState::InUse || lane.sweeping {
            self.put_off.push((lane.endpoint_id, None));
            return None;
        }
        let own = self.full.get(&lane.endpoint_id).copied();
        let own = own.map_or(self.claim.lane_max, |own| usize::try_from(own).unwrap_or(usize::MAX));
        let room = own.min(self.claim.lane_max).min(self.room);
        match lane.health.admit(&self.claim.rules, now) {
            Admission::Wait { until } => {
                // Never now: a claim must not find the lane again at once.
                let until = until.max(now.after(Duration::from_millis(1)));
                self.put_off.push((lane.endpoint_id, Some(until)));
                None
            }
            Admission::Probe => Some(Terms { room: 1, ramped: false, early: true, probe: true }),
            Admission::Go { in_flight_max, drain } => {
                let mut terms = Terms { room, ramped: false, early: drain, probe: false };
                if lane.health.ramp.is_some() {
                    let leased = leased.get(&lane.endpoint_id).copied().unwrap_or(0);
                    let open = i64::from(in_flight_max).saturating_sub(leased).max(0);
                    let open = usize::try_from(open).unwrap_or(usize::MAX);
                    terms.ramped = open <= room;
                    terms.room = room.min(open);
                }
                if terms.room == 0 {
                    self.put_off.push((lane.endpoint_id, Some(now.after(RAMP_RECHECK))));
                    return None;
                }
                Some(terms)
            }
        }
    }

    /// What goes next of the lane, as far as there are tokens.
    fn choose(&mut self, admitted: &mut Admitted) {
        let terms = &mut admitted.terms;
        if self.room < terms.room {
            terms.room = self.room;
            terms.ramped = false;
        }
        let classes = std::mem::take(&mut admitted.classes);
        admitted.candidates = if terms.probe {
            pick_probe(classes, self.claim.now)
        } else {
            share(classes, terms.room)
        };
        admitted.wanted = admitted.candidates.len();
        self.limit(admitted);
        self.room -= admitted.candidates.len();
    }

    /// Takes tokens for the candidates and drops those without one.
    fn limit(&mut self, admitted: &mut Admitted) {
        let now = self.claim.now;
        let Admitted { lane, endpoint, candidates, retry_at, .. } = admitted;
        let mut left = u32::try_from(candidates.len()).unwrap_or(u32::MAX);
        let own = endpoint.rate_limit();
        if let Some(limit) = own {
            let granted = lane.health.limiter.take(limit, left, now);
            if granted.count < left {
                left = granted.count;
                *retry_at = Some(granted.retry_at);
            }
        }
        if let Some((limit, state)) = self.limits.get_mut(&lane.application_id) {
            let granted = state.take(*limit, left, now);
            if granted.count < left {
                if let Some(own) = own {
                    lane.health.limiter.put_back(own, left - granted.count);
                }
                left = granted.count;
                *retry_at = (*retry_at).max(Some(granted.retry_at));
            }
        }
        candidates.truncate(usize::try_from(left).unwrap_or(usize::MAX));
    }

    /// Loads what the candidates carry, as far as there is room for its bytes.
    async fn load_messages(&mut self, tx: &Tx, chosen: &[Admitted]) -> Result<()> {
        let wanted = chosen.iter().flat_map(|lane| &lane.candidates);
        let wanted: BTreeSet<MessageId> = wanted
            .map(|waiting| waiting.message_id)
            .filter(|id| !self.messages.contains_key(id))
            .collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let ids: Column<Uuid> = wanted.into_iter().map(Uuid::from).collect();
        let bytes = i64::try_from(BYTES_MAX.saturating_sub(self.bytes)).unwrap_or(i64::MAX);
        let found = tx
            .all(sql::CLAIM_MESSAGE, params![ids, bytes], |row| {
                let message = rows::message(row)?;
                let id = message.id;
                let has_payload = row.flag()?;
                Ok(match message.payload.is_none() && has_payload {
                    true => (id, Loaded::Later),
                    false => (id, Loaded::Message(Arc::new(message))),
                })
            })
            .await?;
        for (id, loaded) in found {
            if let Loaded::Message(message) = &loaded {
                self.bytes += message.payload.as_ref().map_or(0, bytes::Bytes::len);
            }
            self.messages.insert(id, loaded);
        }
        Ok(())
    }

    /// Leases the candidates; those that cannot be sent any more end.
    async fn lease(&mut self, tx: &Tx, chosen: &mut [Admitted]) -> Result<()> {
        let (mut removed, mut ended) = (Vec::new(), Vec::new());
        for admitted in &mut *chosen {
            for waiting in std::mem::take(&mut admitted.candidates) {
                let lane = &mut admitted.lane;
                let payload_gone = match self.messages.get(&waiting.message_id) {
                    Some(Loaded::Later) => continue,
                    Some(Loaded::Message(message)) => message.payload.is_none(),
                    None => true,
                };
                let cause = if waiting.attempts >= ATTEMPTS_MAX {
                    Some(Cause::Exhausted(last_class(waiting.last_status)))
                } else {
                    payload_gone.then_some(Cause::PayloadGone)
                };
                match (cause, self.messages.get(&waiting.message_id)) {
                    (None, Some(Loaded::Message(message))) => {
                        let leased = self.lease_one(lane, admitted.terms, &waiting);
                        admitted.leased.push((leased, Arc::clone(message)));
                    }
                    (cause, _) => {
                        let cause = cause.unwrap_or(Cause::PayloadGone);
                        let end = self.give_up(lane, &waiting, cause);
                        removed.push(end.key);
                        ended.push(end);
                        self.failed += 1;
                        self.room += 1;
                    }
                }
            }
        }
        let drains: Vec<EndpointId> = chosen
            .iter()
            .filter(|admitted| admitted.terms.early && !admitted.terms.probe)
            .map(|admitted| admitted.lane.endpoint_id)
            .collect();
        let (_, _, _, earliest, waits) = tokio::try_join!(biased;
            write_leases(tx, self.claim, chosen),
            tx.remove_deliveries(&removed),
            tx.store_ended(&ended),
            earliest(tx, chosen),
            tx.waiting_lanes(&drains, self.claim.now),
        )?;
        for admitted in chosen {
            let id = admitted.lane.endpoint_id;
            let waits = waits.contains(&id);
            self.next_of(admitted, earliest.get(&id).copied(), waits);
        }
        Ok(())
    }

    fn lease_one(&self, lane: &mut Lane, terms: Terms, waiting: &Waiting) -> LeasedDelivery {
        let (worker_id, now) = (self.claim.worker_id, self.claim.now);
        let until = now.after(self.claim.lease_for);
        // A probe that is sent before its time is an extra attempt: the plan stays as it was.
        let extra = terms.probe && waiting.due_at > now && waiting.trigger == Trigger::Scheduled;
        let (trigger, planned_at) = match extra {
            true => (Trigger::Manual, Some(waiting.due_at)),
            false => (waiting.trigger, waiting.planned_at),
        };
        if terms.probe {
            lane.health.probe(until);
        }
        LeasedDelivery {
            key: DeliveryKey { endpoint_id: lane.endpoint_id, message_id: waiting.message_id },
            application_id: lane.application_id,
            lease: Lease { worker_id, number: waiting.lease_number + 1, until },
            attempt: waiting.attempts + 1,
            plan_attempt: waiting.plan_attempts + u32::from(trigger == Trigger::Scheduled),
            class: waiting.class,
            trigger,
            planned_at,
            accepted_at: waiting.accepted_at,
            probe: terms.probe,
        }
    }

    fn give_up(&self, lane: &Lane, waiting: &Waiting, cause: Cause) -> Ended {
        Ended {
            key: DeliveryKey { endpoint_id: lane.endpoint_id, message_id: waiting.message_id },
            application_id: lane.application_id,
            state: rows::DEAD_LETTER,
            cause: Some(cause),
            attempts: waiting.attempts,
            lease_number: waiting.lease_number,
            accepted_at: waiting.accepted_at,
            ended_at: self.claim.now,
            last_status: waiting.last_status,
        }
    }

    /// When the lane is due again; ends a ramp that has nothing left to pull forward.
    fn next_of(&self, admitted: &mut Admitted, earliest: Option<Timestamp>, waits: bool) {
        let now = self.claim.now;
        let (lane, terms) = (&mut admitted.lane, admitted.terms);
        let next = match (earliest, lane.health.admit(&self.claim.rules, now)) {
            (None, _) => {
                lane.health.ramp = None;
                None
            }
            (Some(_), Admission::Wait { until }) => Some(until),
            (Some(earliest), _) if terms.early && !terms.probe && !waits => {
                lane.health.ramp = None;
                Some(earliest)
            }
            (Some(_), _) if terms.early && !terms.probe => {
                // More waits than fits the ramp; what comes back makes room for it.
                let full = terms.ramped && admitted.wanted >= terms.room;
                Some(if full { now.after(RAMP_RECHECK) } else { now })
            }
            // At the back of those that are due: others were due before now.
            (Some(earliest), _) => Some(earliest.max(now)),
        };
        lane.next_due_at = match (next, admitted.retry_at) {
            (Some(next), Some(retry_at)) => Some(next.max(retry_at)),
            (next, _) => next,
        };
    }

    fn settle(&mut self, chosen: Vec<Admitted>) -> Vec<ClaimedLane> {
        let mut claimed = Vec::with_capacity(chosen.len());
        for Admitted { lane, endpoint, leased: deliveries, .. } in chosen {
            let own = self.full.get(&lane.endpoint_id).copied().map(usize::try_from);
            if own.is_some_and(|own| own.is_ok_and(|own| deliveries.len() >= own)) {
                self.exhausted.insert(lane.endpoint_id);
            }
            if !deliveries.is_empty() {
                claimed.push(ClaimedLane { endpoint, health: lane.health, deliveries });
            }
            self.lanes.push(lane);
        }
        claimed
    }

    /// Writes what is left to write, tells when a lane that this worker has room for is due, and
    /// commits.
    async fn finish(&self, tx: &Tx) -> Result<Option<Timestamp>> {
        let minute = minute_of(self.claim.now);
        let tally = Tally { minute, failed: self.failed, ..Tally::default() };
        let tallies: &[Tally] = if self.failed > 0 { &[tally] } else { &[] };
        let worker = BTreeMap::from([(self.claim.worker_id, self.claim.now)]);
        let (_, _, _, (), _, next, ()) = tokio::try_join!(biased;
            tx.store_lanes(&self.lanes),
            tx.set_due(&self.put_off),
            self.store_limits(tx),
            tx.see_workers(&worker),
            tx.add_tallies(self.claim.worker_id, tallies),
            self.next_lanes(tx),
            tx.commit(),
        )?;
        let has_room = |id: &EndpointId| !self.exhausted.contains(id);
        Ok(next.into_iter().find(|(id, _)| has_room(id)).map(|(_, at)| at))
    }

    async fn next_lanes(&self, tx: &Tx) -> Result<Vec<(EndpointId, Timestamp)>> {
        let limit = i64::try_from(self.exhausted.len() + 1).unwrap_or(i64::MAX);
        tx.all(sql::LANES_NEXT, params![limit], |row| Ok((row.id()?, row.time()?))).await
    }

    async fn store_limits(&self, tx: &Tx) -> Result<()> {
        if self.limits.is_empty() {
            return Ok(());
        }
        let ids: Column<Uuid> = self.limits.keys().map(|id| (*id).into()).collect();
        let states: Column<i64> =
            self.limits.values().map(|(_, state)| micros(state.next_at)).collect();
        tx.run(sql::APPLICATION_LIMIT_STORE, params![ids, states]).await.map(drop)
    }
}
