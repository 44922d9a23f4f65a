//! This process's lanes: which jobs wait in memory, what is in flight, who may go next.
//!
//! A lane's truth (breaker, ramp, limits) is its row in the store; here is a copy that the last
//! claim or record brought, so that the fast path need not ask. Whatever the copy gets wrong costs
//! a detour through the store, never a promise.
//!
//! **Invariant:** deliveries in flight are bounded three times: per lane by a window that grows
//! with success and shrinks with slow failure, over all lanes, and over all lanes whose last answer
//! was not a success, which together get at most half. So no number of sick endpoints can take the
//! room of the healthy ones. The payload bytes in memory, in flight too, are bounded likewise; what
//! one claim brings may exceed the bound once.

mod table;

use async_trait::async_trait;
use posthaste_core::breaker::Weight;
use posthaste_core::delivery::LeasedDelivery;
use posthaste_core::endpoint::Endpoint;
use posthaste_core::id::{EndpointId, WorkerId};
use posthaste_core::lane::{Admission, Health, LaneRules};
use posthaste_core::time::Clock;
use posthaste_queue::{FastPath, Job, Room};
use posthaste_store::outbox::{ClaimedLane, LeaseTerms};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use table::{Lane, Table, size_of};
use tokio::sync::Notify;

const WINDOW_MIN: u32 = 2;
/// A failure that took this long shrinks the window.
const SLOW: Duration = Duration::from_secs(1);
/// Jobs of one lane that may wait in memory.
const LANE_WAITING_MAX: usize = 1_024;
/// A job that has waited so long goes back to the store, where others can take it and where its
/// lease does not run down.
const WAITING_FOR_MAX: Duration = Duration::from_secs(4);
/// An endpoint that has attempts in flight and ended none for so long is no longer taken for well.
const STUCK_AFTER: Duration = Duration::from_secs(2);
/// Endpoints of one message that are asked whether they have more to do than memory holds.
const PRESSURE_LOOKS_MAX: usize = 64;
/// A lane that did nothing for so long is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Deliveries in flight over all lanes.
    pub in_flight_max: usize,
    /// Jobs that wait in memory over all lanes.
    pub waiting_max: usize,
    /// Payload bytes of what waits or is in flight, over all lanes.
    pub bytes_max: usize,
}

pub struct Lanes {
    table: Mutex<Table>,
    worker_id: WorkerId,
    lease_for: Duration,
    rules: LaneRules,
    capacity: Capacity,
    clock: Arc<dyn Clock>,
    /// Jobs that may start, for whoever spawns them.
    start: Box<dyn Fn(Job) + Send + Sync>,
    /// Room appeared that a claim could fill.
    pub freed: Notify,
    /// Memory has room again after it was full.
    relief: Notify,
}

/// What a claim asked for.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub lane_max: u32,
    /// Lanes that were asked for less.
    pub full: HashMap<EndpointId, u32>,
    /// The claim was not cut off, and left nothing due but in lanes that gave all they were asked.
    pub had_all: bool,
}

impl Asked {
    fn room(&self, id: EndpointId) -> u32 {
        self.full.get(&id).copied().unwrap_or(self.lane_max)
    }
}

/// What there is to see from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    pub in_flight: usize,
    pub waiting: usize,
    pub lanes: usize,
}

impl Lanes {
    /// `start` is called for every job that may go now; it must not block.
    pub fn new(
        worker_id: WorkerId,
        lease_for: Duration,
        rules: LaneRules,
        capacity: Capacity,
        clock: Arc<dyn Clock>,
        start: Box<dyn Fn(Job) + Send + Sync>,
    ) -> Self {
        let table = Mutex::default();
        let (freed, relief) = (Notify::new(), Notify::new());
        Self { table, worker_id, lease_for, rules, capacity, clock, start, freed, relief }
    }

    pub fn occupancy(&self) -> Occupancy {
        let table = self.lock();
        Occupancy { in_flight: table.in_flight, waiting: table.waiting, lanes: table.lanes.len() }
    }

    /// How many deliveries a claim may bring.
    pub fn room(&self) -> usize {
        let table = self.lock();
        if table.stopping || table.bytes >= self.capacity.bytes_max {
            return 0;
        }
        // As many again as may be in flight wait in memory, so that no slot idles during a claim.
        let most = (2 * self.capacity.in_flight_max).min(self.capacity.waiting_max);
        most.saturating_sub(table.in_flight + table.waiting)
    }

    /// Lanes that can take fewer than `lane_max` more now, with what they can take.
    pub fn full(&self, lane_max: u32) -> Vec<(EndpointId, u32)> {
        let table = self.lock();
        let no_bytes = table.bytes_unproven >= self.capacity.bytes_max / 2;
        let room = |lane: &Lane| {
            if no_bytes && !lane.proven {
                return 0;
            }
            (2 * lane.window).saturating_sub(lane.in_flight + lane.waiting_count as u32)
        };
        table
            .lanes
            .iter()
            .map(|(id, lane)| (*id, room(lane)))
            .filter(|(_, room)| *room < lane_max)
            .collect()
    }

    /// Takes what a claim brought and starts what may start, and learns which lanes have something
    /// due left in the store: those that gave all they were asked for, and those that had no room.
    pub fn take_claimed(&self, claimed: Vec<ClaimedLane>, asked: &Asked) {
        let now = self.clock.now();
        let mut table = self.lock();
        if asked.had_all {
            for (id, lane) in &mut table.lanes {
                lane.backlog &= asked.room(*id) == 0;
                lane.overflowed &= lane.backlog;
            }
        }
        for claimed_lane in claimed {
            let id = claimed_lane.endpoint.id;
            let lane = table.lane(id, now);
            lane.health = claimed_lane.health;
            lane.backlog =
                !asked.had_all || claimed_lane.deliveries.len() >= asked.room(id) as usize;
            // A backlog that drains after an outage is no reason to hold its publishers back.
            lane.overflowed = lane.backlog && lane.proven && lane.health.ramp.is_none();
            for (delivery, message) in claimed_lane.deliveries {
                let endpoint = claimed_lane.endpoint.clone();
                table.wait(now, Job { delivery, message, endpoint });
            }
        }
        self.pump(table);
        self.relief.notify_waiters();
    }

    /// An attempt with a payload of `bytes` ended after `took`. Returns the next job for the same
    /// task, if one may go.
    pub fn finished(
        &self,
        id: EndpointId,
        weight: Weight,
        took: Duration,
        bytes: usize,
    ) -> Option<Job> {
        let now = self.clock.now();
        let mut table = self.lock();
        let lane = table.lane(id, now);
        lane.answered_at = now;
        let backlog = lane.backlog;
        match weight {
            Weight::Good => lane.window = (lane.window + 1).min(self.rules.in_flight_max),
            // Quick failures hold no room, and the breaker deals with them.
            Weight::Bad if took >= SLOW => lane.window = (lane.window / 2).max(WINDOW_MIN),
            Weight::Bad | Weight::Neutral => {}
        }
        table.land(id, bytes);
        if weight != Weight::Neutral {
            table.prove(id, weight == Weight::Good);
        }
        table.list(id);
        let next = self.next(&mut table);
        let more = next.is_some() && !table.ready.is_empty();
        if table.pressed && table.waiting < self.capacity.waiting_max / 4 * 3 {
            table.pressed = false;
            self.relief.notify_waiters();
        }
        if backlog || next.is_none() {
            self.freed.notify_one();
        }
        if more {
            self.pump(table);
        }
        next
    }

    /// The store's word on lanes' health. Jobs of a lane that may not go now are returned: they go
    /// back to the store.
    pub fn refresh(&self, healths: &[(EndpointId, Health)]) -> Vec<LeasedDelivery> {
        let now = self.clock.now();
        let mut given_back = Vec::new();
        let mut table = self.lock();
        for (id, health) in healths {
            let Some(lane) = table.lanes.get_mut(id) else { continue };
            lane.health = *health;
            if !matches!(health.admit(&self.rules, now), Admission::Go { .. }) {
                table.empty(*id, &mut given_back, |_| true);
            }
        }
        given_back
    }

    /// Jobs that have waited too long, to go back to the store. Lanes that are stuck lose their
    /// good name, and lanes long idle are forgotten.
    pub fn tidy(&self) -> Vec<LeasedDelivery> {
        let now = self.clock.now();
        let too_old = now.before(WAITING_FOR_MAX);
        let mut given_back = Vec::new();
        let mut table = self.lock();
        let stuck_before = now.before(STUCK_AFTER);
        let is_stuck = |lane: &Lane| lane.in_flight > 0 && lane.answered_at < stuck_before;
        let stuck = table.lanes.iter().filter(|(_, lane)| lane.proven && is_stuck(lane));
        for id in stuck.map(|(id, _)| *id).collect::<Vec<_>>() {
            table.prove(id, false);
        }
        let waiting: Vec<_> = table
            .lanes
            .iter()
            .filter(|(_, lane)| lane.waiting_count > 0)
            .map(|(id, _)| *id)
            .collect();
        for id in waiting {
            table.empty(id, &mut given_back, |since| since < too_old);
        }
        let forget_before = now.before(FORGET_AFTER);
        table.lanes.retain(|_, lane| {
            lane.in_flight > 0
                || lane.waiting_count > 0
                || lane.reserved > 0
                || lane.used_at > forget_before
        });
        given_back
    }

    /// From now on nothing starts and nothing is taken; what waits goes back to the store.
    pub fn stop(&self) -> Vec<LeasedDelivery> {
        let mut given_back = Vec::new();
        let mut table = self.lock();
        table.stopping = true;
        let ids: Vec<_> = table.lanes.keys().copied().collect();
        for id in ids {
            table.empty(id, &mut given_back, |_| true);
        }
        given_back
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Every change below is complete before anything can panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts whatever may start, after the lock is gone.
    fn pump(&self, mut table: MutexGuard<'_, Table>) {
        let mut jobs = Vec::new();
        while let Some(job) = self.next(&mut table) {
            jobs.push(job);
        }
        drop(table);
        for job in jobs {
            (self.start)(job);
        }
    }

    /// The next job that may start, counted as in flight.
    fn next(&self, table: &mut Table) -> Option<Job> {
        if table.in_flight >= self.capacity.in_flight_max {
            return None;
        }
        for _ in 0..table.ready.len() {
            let id = table.ready.pop_front()?;
            let unproven_full = table.in_flight_unproven >= self.capacity.in_flight_max / 2;
            let Some(lane) = table.lanes.get_mut(&id) else { continue };
            lane.listed = false;
            if lane.waiting_count == 0 || lane.in_flight >= self.lane_max(lane) {
                continue;
            }
            if !lane.proven && unproven_full {
                lane.listed = true;
                table.ready.push_back(id);
                continue;
            }
            let job = table.launch(id);
            table.list(id);
            if job.is_some() {
                return job;
            }
        }
        None
    }

    /// Whether one of the endpoints, well as it is, has more to do than memory holds.
    fn presses(&self, endpoints: &[Arc<Endpoint>]) -> bool {
        let mut table = self.lock();
        let is_full =
            table.waiting >= self.capacity.waiting_max || table.bytes >= self.capacity.bytes_max;
        let overflowed = |endpoint: &Arc<Endpoint>| {
            table.lanes.get(&endpoint.id).is_some_and(|lane| lane.overflowed && lane.proven)
        };
        let presses = is_full || endpoints.iter().take(PRESSURE_LOOKS_MAX).any(overflowed);
        table.pressed |= presses;
        presses && !table.stopping
    }

    fn lane_max(&self, lane: &Lane) -> u32 {
        lane.health.ramp.unwrap_or(u32::MAX).min(lane.window).min(self.rules.in_flight_max)
    }
}

#[async_trait]
impl FastPath for Lanes {
    fn terms(&self) -> Option<LeaseTerms> {
        let stopping = self.lock().stopping;
        let until = self.clock.now().after(self.lease_for);
        (!stopping).then_some(LeaseTerms { worker_id: self.worker_id, until })
    }

    fn reserve(&self, id: EndpointId, bytes: usize) -> Option<Room> {
        let now = self.clock.now();
        let mut table = self.lock();
        let proven = table.lane(id, now).proven;
        // One payload always fits, however large.
        let within = |held: usize, max: usize| held == 0 || held + bytes <= max;
        let bytes_max = self.capacity.bytes_max;
        let fits = !table.stopping
            && table.waiting < self.capacity.waiting_max
            && within(table.bytes, bytes_max)
            && (proven || within(table.bytes_unproven, bytes_max / 2));
        let lane = table.lane(id, now);
        let healthy =
            matches!(lane.health.admit(&self.rules, now), Admission::Go { drain: false, .. });
        // What waits must be gone again well before its lease is: a few rounds of the window.
        let lane_fits = lane.waiting_count + lane.reserved
            < LANE_WAITING_MAX.min(if lane.proven { usize::MAX } else { 4 * lane.window as usize });
        if !healthy || lane.backlog {
            return None;
        }
        if !fits || !lane_fits {
            lane.backlog = true;
            lane.overflowed = lane.proven;
            return None;
        }
        lane.reserved += 1;
        table.waiting += 1;
        table.hold(id, bytes);
        Some(Room { endpoint_id: id, bytes })
    }

    fn hand_over(&self, jobs: Vec<Job>) {
        let now = self.clock.now();
        let mut table = self.lock();
        for job in jobs {
            let bytes = size_of(&job);
            table.unreserve(&Room { endpoint_id: job.endpoint.id, bytes });
            table.wait(now, job);
        }
        self.pump(table);
    }

    fn release(&self, room: Room) {
        self.lock().unreserve(&room);
    }

    async fn relieved(&self, endpoints: &[Arc<Endpoint>]) {
        loop {
            let relief = self.relief.notified();
            if !self.presses(endpoints) {
                return;
            }
            relief.await;
        }
    }
}

#[cfg(test)]
mod tests;
