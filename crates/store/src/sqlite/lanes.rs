//! Lanes as the writer uses them: loaded, decided about, stored.

use super::writer::Tx;
use crate::lanes::{Ended, Lane, LaneNotice, LaneState, Open, Tally};
use crate::queries::queries;
use crate::rows;
use crate::{Error, Kind, Result};
use posthaste_core::delivery::{Cause, DeliveryKey};
use posthaste_core::endpoint::DisabledReason;
use posthaste_core::id::{EndpointId, WorkerId};
use posthaste_core::lane::Event;
use posthaste_core::time::Timestamp;
use rusqlite::params;
use std::time::Duration;

pub(super) mod sql {
    super::queries! { "../../sql/sqlite/outbox.sql":
        ROUTES_VERSION, IDEMPOTENCY_FIND, IDEMPOTENCY_ACCEPT, EVENT_FIND, MESSAGE_INSERT,
        DELIVERY_INSERT, LANE_PULL, LANES_DUE, LANES_NEXT, LANE_FIND, LANE_STORE, LANE_DUE_SET,
        LANE_LEASED, LANE_WAITING, APPLICATION_LIMIT, APPLICATION_LIMIT_STORE, CLAIM_ENDPOINT,
        WAITING_OF_CLASS, WAITING_NEXT, DELIVERY_LEASE, CLAIM_MESSAGE, ATTEMPT_INSERT,
        ATTEMPT_KEPT, DELIVERY_END, DELIVERY_WAIT, DELIVERY_REMOVE, ENDED_STORE, ENDED_AGAIN,
        TALLY_ADD, SKETCH_STORE, ENDPOINT_DISABLE, LANE_CLOSE, ROUTES_RAISE, NOTICE_INSERT,
        DELIVERY_FIND, DELIVERY_RELEASE, RESEND_FIND, RESEND_OPEN, RESEND_INSERT,
    }
}

impl Tx<'_> {
    pub fn lane(&self, id: EndpointId) -> Result<Option<Lane>> {
        self.db.one(sql::LANE_FIND, [id.as_bytes()], Lane::read)
    }

    pub fn store_lane(&self, lane: &Lane) -> Result<()> {
        let health = &lane.health;
        let (position, until) = rows::position_columns(health.breaker.position);
        self.db.run(
            sql::LANE_STORE,
            params![
                lane.endpoint_id.as_bytes(),
                lane.next_due_at.map(Timestamp::as_micros),
                position,
                until,
                health.breaker.consecutive_failures,
                rows::micros(health.breaker.cooldown),
                health.quiet_until.map(Timestamp::as_micros),
                health.ramp,
                health.failing_since.map(Timestamp::as_micros),
                health.last_failure_at.map(Timestamp::as_micros),
                health.last_success_at.map(Timestamp::as_micros),
                health.warned_percent,
                health.limiter.next_at.as_micros(),
                health.p95_ms,
            ],
        )?;
        Ok(())
    }

    /// Brings the lane's next due time nearer, if `at` is before it.
    pub fn pull_lane(&self, id: EndpointId, at: Timestamp) -> Result<()> {
        self.db.run(sql::LANE_PULL, params![id.as_bytes(), at.as_micros()])?;
        Ok(())
    }

    /// Whether something waits that a drain may pull forward.
    pub fn lane_waits(&self, id: EndpointId, now: Timestamp) -> Result<bool> {
        self.db.get(sql::LANE_WAITING, params![id.as_bytes(), now.as_micros()], |row| row.flag())
    }

    /// Writes how an open delivery of this transaction ended, and drops its open row.
    pub fn end(&self, ended: &Ended) -> Result<()> {
        let key = params![ended.key.endpoint_id.as_bytes(), ended.key.message_id.as_bytes()];
        let before = self.db.get(sql::DELIVERY_REMOVE, key, |row| row.opt_int())?;
        let Some(seq) = before else { return self.store_ended(ended) };
        self.db.run(
            sql::ENDED_AGAIN,
            params![
                seq,
                ended.state,
                ended.cause.as_ref().map(Cause::to_string),
                ended.attempts,
                ended.lease_number,
                ended.ended_at.as_micros(),
                ended.last_status,
            ],
        )?;
        Ok(())
    }

    /// Writes how a delivery ended that had not ended before, and whose open row is gone.
    pub fn store_ended(&self, ended: &Ended) -> Result<()> {
        self.db.run(
            sql::ENDED_STORE,
            params![
                ended.key.endpoint_id.as_bytes(),
                ended.key.message_id.as_bytes(),
                ended.application_id.as_bytes(),
                ended.state,
                ended.cause.as_ref().map(Cause::to_string),
                ended.attempts,
                ended.lease_number,
                ended.accepted_at.as_micros(),
                ended.ended_at.as_micros(),
                ended.last_status,
            ],
        )?;
        Ok(())
    }

    pub fn add_tally(&self, worker: WorkerId, tally: &Tally) -> Result<()> {
        self.db.run(
            sql::TALLY_ADD,
            params![
                tally.minute,
                worker.as_bytes(),
                tally.delivered,
                tally.failed,
                tally.failed_attempts,
                tally.timed,
                tally.delivery_time,
            ],
        )?;
        Ok(())
    }

    /// A worker that may hold leases from now on: its row is there and its lock is held.
    pub fn see_worker(&mut self, worker: WorkerId, now: Timestamp) -> Result<()> {
        if !self.workers.insert(worker) {
            return Ok(());
        }
        let locks = self.memory.locks.hold(worker);
        self.db.run(
            super::upkeep::sql::WORKER_SEE,
            params![worker.as_bytes(), now.as_micros(), locks],
        )?;
        Ok(())
    }

    /// Disables the endpoint of a lane because of how its receiver answers. What waits is held by
    /// the steps that follow.
    pub fn disable(&mut self, lane: &mut Lane, event: &LaneNotice) -> Result<()> {
        let reason = match event.event {
            Event::Gone => DisabledReason::Gone,
            _ => DisabledReason::Failing,
        };
        let id = lane.endpoint_id.as_bytes();
        let now = event.at.as_micros();
        self.db.run(sql::ENDPOINT_DISABLE, params![id, rows::disabled_text(reason), now])?;
        self.db.run(sql::LANE_CLOSE, params![id, LaneState::Disabled.column(), 1])?;
        self.db.run(sql::ROUTES_RAISE, [lane.application_id.as_bytes()])?;
        self.versions.clear();
        lane.state = LaneState::Disabled;
        lane.next_due_at = None;
        self.notice(lane, event)
    }

    /// Leaves word of an event for operators.
    pub fn notice(&self, lane: &Lane, event: &LaneNotice) -> Result<()> {
        let Some((kind, detail)) = event.text() else { return Ok(()) };
        self.db.run(
            sql::NOTICE_INSERT,
            params![
                event.id(lane.endpoint_id).as_bytes(),
                lane.application_id.as_bytes(),
                lane.endpoint_id.as_bytes(),
                kind,
                detail,
            ],
        )?;
        Ok(())
    }
}

impl Tx<'_> {
    pub fn open_delivery(&self, key: DeliveryKey) -> Result<Option<Open>> {
        let key = params![key.endpoint_id.as_bytes(), key.message_id.as_bytes()];
        self.db.one(sql::DELIVERY_FIND, key, Open::read)
    }

    /// Makes a leased delivery wait again, at once; one whose endpoint is disabled is held, one
    /// whose endpoint is deleted ends. If it was the probe, another may go. `counted`: whether its
    /// attempt stays counted.
    pub fn release(
        &self,
        key: DeliveryKey,
        open: &Open,
        now: Timestamp,
        counted: bool,
    ) -> Result<()> {
        let lane = self.lane(key.endpoint_id)?;
        let mut lane =
            lane.ok_or_else(|| Error::new(Kind::Internal, "a delivery without a lane"))?;
        if open.lease_until.is_some_and(|until| lane.health.awaits(until)) {
            lane.health.breaker.release_probe(now, Duration::ZERO);
            self.store_lane(&lane)?;
        }
        if lane.state == LaneState::Deleted {
            let cause = Cause::EndpointDeleted;
            return self.end(&open.ended(key, rows::CANCELLED, cause, now));
        }
        self.db.run(
            sql::DELIVERY_RELEASE,
            params![
                key.endpoint_id.as_bytes(),
                key.message_id.as_bytes(),
                lane.state.waits_as(),
                now.as_micros(),
                counted,
            ],
        )?;
        self.pull_lane(key.endpoint_id, now)
    }
}
