//! The counts behind the lanes. Each change keeps the sums over all lanes in step with the lane.

use posthaste_core::delivery::{Class, LeasedDelivery};
use posthaste_core::id::EndpointId;
use posthaste_core::lane::Health;
use posthaste_core::time::Timestamp;
use posthaste_queue::{Job, Room};
use std::collections::{HashMap, VecDeque};

/// The window of a lane that nothing is known of.
const WINDOW_START: u32 = 8;

#[derive(Default)]
pub(super) struct Table {
    pub lanes: HashMap<EndpointId, Lane>,
    /// Lanes with waiting jobs and free window, each once, in the order of their turns.
    pub ready: VecDeque<EndpointId>,
    pub in_flight: usize,
    /// Of those, in lanes that are not proven.
    pub in_flight_unproven: usize,
    pub waiting: usize,
    /// Payload bytes of everything that waits, is reserved or in flight ...
    pub bytes: usize,
    /// ... and of that, in lanes that are not proven.
    pub bytes_unproven: usize,
    /// Somebody waits for memory to have room again.
    pub pressed: bool,
    pub stopping: bool,
}

pub(super) struct Lane {
    pub health: Health,
    pub window: u32,
    /// The last answer was a success, and not long ago while others are waited for. Changed by
    /// `Table::prove` only.
    pub proven: bool,
    /// When an attempt last ended.
    pub answered_at: Timestamp,
    pub in_flight: u32,
    /// Payload bytes of what waits, is reserved or in flight.
    pub bytes: usize,
    /// By class, oldest first.
    pub waiting: [VecDeque<(Timestamp, Job)>; Class::ALL.len()],
    pub waiting_count: usize,
    pub reserved: usize,
    /// Turns taken, to let lower classes have theirs.
    turns: u32,
    /// The store has due deliveries of this lane: new ones queue behind them.
    pub backlog: bool,
    /// It has them because memory had no room, not because the endpoint is unwell.
    pub overflowed: bool,
    pub listed: bool,
    pub used_at: Timestamp,
}

impl Table {
    pub fn lane(&mut self, id: EndpointId, now: Timestamp) -> &mut Lane {
        let lane = self.lanes.entry(id).or_insert_with(|| Lane::new(now));
        lane.used_at = now;
        lane
    }

    pub fn wait(&mut self, now: Timestamp, job: Job) {
        let id = job.endpoint.id;
        self.waiting += 1;
        self.lane(id, now);
        self.hold(id, size_of(&job));
        let lane = self.lane(id, now);
        lane.waiting_count += 1;
        lane.waiting[job.delivery.class as usize].push_back((now, job));
        self.list(id);
    }

    /// Counts payload bytes that a lane holds from now on.
    pub fn hold(&mut self, id: EndpointId, bytes: usize) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        lane.bytes += bytes;
        self.bytes += bytes;
        self.bytes_unproven += if lane.proven { 0 } else { bytes };
    }

    /// The reverse of `hold`.
    pub fn let_go(&mut self, id: EndpointId, bytes: usize) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        lane.bytes -= bytes;
        self.bytes -= bytes;
        self.bytes_unproven -= if lane.proven { 0 } else { bytes };
    }

    /// Notes whether the lane's last answer was a success, and moves what it holds to that side.
    pub fn prove(&mut self, id: EndpointId, proven: bool) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        if lane.proven == proven {
            return;
        }
        lane.proven = proven;
        if proven {
            self.in_flight_unproven -= lane.in_flight as usize;
            self.bytes_unproven -= lane.bytes;
        } else {
            self.in_flight_unproven += lane.in_flight as usize;
            self.bytes_unproven += lane.bytes;
        }
    }

    /// The oldest job of the lane whose turn it is, counted as in flight.
    pub fn launch(&mut self, id: EndpointId) -> Option<Job> {
        let lane = self.lanes.get_mut(&id)?;
        let job = lane.pop()?;
        lane.in_flight += 1;
        self.in_flight += 1;
        self.in_flight_unproven += usize::from(!lane.proven);
        self.waiting -= 1;
        Some(job)
    }

    /// An attempt is over: the reverse of `launch`, and its payload is let go.
    pub fn land(&mut self, id: EndpointId, bytes: usize) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        lane.in_flight -= 1;
        self.in_flight -= 1;
        self.in_flight_unproven -= usize::from(!lane.proven);
        self.let_go(id, bytes);
    }

    pub fn unreserve(&mut self, room: &Room) {
        self.waiting -= 1;
        self.let_go(room.endpoint_id, room.bytes);
        if let Some(lane) = self.lanes.get_mut(&room.endpoint_id) {
            lane.reserved = lane.reserved.saturating_sub(1);
        }
    }

    /// Gives the lane a turn, if it has something to do and is not in line already.
    pub fn list(&mut self, id: EndpointId) {
        if let Some(lane) = self.lanes.get_mut(&id)
            && !lane.listed
            && lane.waiting_count > 0
            && lane.in_flight < lane.window
        {
            lane.listed = true;
            self.ready.push_back(id);
        }
    }

    /// Takes the waiting jobs that `which` picks by when they began to wait out of the lane.
    pub fn empty(
        &mut self,
        id: EndpointId,
        given_back: &mut Vec<LeasedDelivery>,
        which: impl Fn(Timestamp) -> bool,
    ) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        let (mut count, mut bytes) = (0, 0);
        for queue in &mut lane.waiting {
            queue.retain(|(since, job)| {
                let goes = which(*since);
                if goes {
                    count += 1;
                    bytes += size_of(job);
                    given_back.push(job.delivery);
                }
                !goes
            });
        }
        lane.waiting_count -= count;
        lane.backlog |= count > 0;
        self.waiting -= count;
        self.let_go(id, bytes);
    }
}

impl Lane {
    fn new(now: Timestamp) -> Self {
        Self {
            health: Health::default(),
            window: WINDOW_START,
            proven: false,
            answered_at: now,
            in_flight: 0,
            bytes: 0,
            waiting: Default::default(),
            waiting_count: 0,
            reserved: 0,
            turns: 0,
            backlog: false,
            overflowed: false,
            listed: false,
            used_at: now,
        }
    }

    /// The oldest job of the class whose turn it is: every fourth turn goes to the lowest class
    /// that has something waiting, the others to the highest.
    pub fn pop(&mut self) -> Option<Job> {
        self.turns = self.turns.wrapping_add(1);
        let queue = if self.turns.is_multiple_of(4) {
            self.waiting.iter_mut().rev().find(|queue| !queue.is_empty())
        } else {
            self.waiting.iter_mut().find(|queue| !queue.is_empty())
        };
        let (_, job) = queue?.pop_front()?;
        self.waiting_count -= 1;
        Some(job)
    }
}

pub(super) fn size_of(job: &Job) -> usize {
    job.message.payload.as_ref().map_or(0, bytes::Bytes::len)
}
