//! Lanes and deliveries as transactions use them: locked, read, written, many at once.

use super::db::{Column, Tx, Uuid, params};
use crate::lanes::{Ended, Lane, LaneNotice, LaneState, Open, Tally};
use crate::queries::queries;
use crate::rows;
use crate::{Error, Kind, Result};
use posthaste_core::delivery::{Cause, DeliveryKey};
use posthaste_core::endpoint::DisabledReason;
use posthaste_core::id::{EndpointId, WorkerId};
use posthaste_core::lane::Event;
use posthaste_core::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(super) mod sql {
    super::queries! { "../../sql/postgres/outbox.sql":
        ROUTES_VERSION, IDEMPOTENCY_FIND, IDEMPOTENCY_EXPIRE, IDEMPOTENCY_ACCEPT, EVENT_FIND,
        EVENT_INSERT, MESSAGE_INSERT, DELIVERY_INSERT, LANE_LOCK, LANE_PULL, LANES_DUE,
        LANES_NEXT, LANE_FIND, LANE_STORE, LANE_DUE_SET, LANE_LEASED, LANE_WAITING,
        APPLICATION_LIMIT, APPLICATION_LIMIT_TRY, APPLICATION_LIMIT_STORE, CLAIM_ENDPOINT,
        WAITING_OF_CLASS,
        WAITING_NEXT, DELIVERY_LEASE, CLAIM_MESSAGE, ATTEMPT_INSERT, DELIVERY_END, DELIVERY_WAIT,
        DELIVERY_REMOVE, ENDED_STORE, TALLY_ADD, SKETCH_STORE, ENDPOINT_DISABLE, LANE_CLOSE,
        ROUTES_RAISE, APPLICATION_LOCK, NOTICE_INSERT, DELIVERY_FIND, DELIVERY_RELEASE,
        RESEND_FIND, RESEND_OPEN, RESEND_INSERT,
    }
}

/// A time as a parameter.
pub(super) const fn micros(at: Timestamp) -> i64 {
    at.as_micros()
}

fn endpoints(keys: &[DeliveryKey]) -> Column<Uuid> {
    keys.iter().map(|key| key.endpoint_id.into()).collect()
}

fn messages(keys: &[DeliveryKey]) -> Column<Uuid> {
    keys.iter().map(|key| key.message_id.into()).collect()
}

impl Tx {
    /// Locks lanes and reads them.
    pub async fn lanes(
        &self,
        ids: impl IntoIterator<Item = EndpointId>,
    ) -> Result<BTreeMap<EndpointId, Lane>> {
        let ids: BTreeSet<Uuid> = ids.into_iter().map(Uuid::from).collect();
        let ids: Column<Uuid> = ids.into_iter().collect();
        let lanes = self.all(sql::LANE_FIND, params![ids], Lane::read).await?;
        Ok(lanes.into_iter().map(|lane| (lane.endpoint_id, lane)).collect())
    }

    /// Writes due times and health of locked lanes.
    pub async fn store_lanes<'l>(&self, lanes: impl IntoIterator<Item = &'l Lane>) -> Result<()> {
        let lanes: Vec<&Lane> = lanes.into_iter().collect();
        if lanes.is_empty() {
            return Ok(());
        }
        let ids: Column<Uuid> = lanes.iter().map(|lane| lane.endpoint_id.into()).collect();
        let number = |read: fn(&Lane) -> i64| lanes.iter().map(|lane| read(lane)).collect();
        let or_null =
            |read: fn(&Lane) -> Option<i64>| lanes.iter().map(|lane| read(lane)).collect();
        let position = |lane: &Lane| rows::position_columns(lane.health.breaker.position);
        let positions: (Vec<i64>, Vec<i64>) = lanes.iter().map(|lane| position(lane)).unzip();
        let next_due: Column<Option<i64>> = or_null(|lane| lane.next_due_at.map(micros));
        let failures: Column<i64> = number(|lane| lane.health.breaker.consecutive_failures.into());
        let cooldown: Column<i64> = number(|lane| rows::micros(lane.health.breaker.cooldown));
        let quiet: Column<Option<i64>> = or_null(|lane| lane.health.quiet_until.map(micros));
        let ramp: Column<Option<i64>> = or_null(|lane| lane.health.ramp.map(i64::from));
        let failing: Column<Option<i64>> = or_null(|lane| lane.health.failing_since.map(micros));
        let failed: Column<Option<i64>> = or_null(|lane| lane.health.last_failure_at.map(micros));
        let well: Column<Option<i64>> = or_null(|lane| lane.health.last_success_at.map(micros));
        let warned: Column<i64> = number(|lane| lane.health.warned_percent.into());
        let limiter: Column<i64> = number(|lane| micros(lane.health.limiter.next_at));
        let p95: Column<i64> = number(|lane| lane.health.p95_ms.into());
        let row = params![
            ids,
            next_due,
            Column(positions.0),
            Column(positions.1),
            failures,
            cooldown,
            quiet,
            ramp,
            failing,
            failed,
            well,
            warned,
            limiter,
            p95,
        ];
        self.run(sql::LANE_STORE, row).await.map(drop)
    }

    /// Writes nothing but the due times of locked lanes.
    pub async fn set_due(&self, lanes: &[(EndpointId, Option<Timestamp>)]) -> Result<()> {
        if lanes.is_empty() {
            return Ok(());
        }
        let ids: Column<Uuid> = lanes.iter().map(|(id, _)| (*id).into()).collect();
        let due: Column<Option<i64>> = lanes.iter().map(|(_, at)| at.map(micros)).collect();
        self.run(sql::LANE_DUE_SET, params![ids, due]).await.map(drop)
    }

    /// Brings the next due times of lanes nearer, where they are later than that.
    pub async fn pull_lanes(&self, due: &BTreeMap<EndpointId, Timestamp>) -> Result<()> {
        if due.is_empty() {
            return Ok(());
        }
        let ids: Column<Uuid> = due.keys().map(|id| (*id).into()).collect();
        let at: Column<i64> = due.values().map(|at| micros(*at)).collect();
        let lock = async { self.all(sql::LANE_LOCK, params![ids], |_| Ok(())).await };
        let pull = async { self.run(sql::LANE_PULL, params![ids, at]).await };
        tokio::try_join!(biased; lock, pull).map(drop)
    }

    /// Those of the lanes where something waits that a drain may pull forward.
    pub async fn waiting_lanes(
        &self,
        ids: &[EndpointId],
        now: Timestamp,
    ) -> Result<BTreeSet<EndpointId>> {
        if ids.is_empty() {
            return Ok(BTreeSet::new());
        }
        let ids: Column<Uuid> = ids.iter().map(|id| (*id).into()).collect();
        let key = params![ids, micros(now)];
        let found = self.all(sql::LANE_WAITING, key, |row| row.id()).await?;
        Ok(found.into_iter().collect())
    }

    /// Writes how deliveries ended, each named once. Their open rows are the caller's.
    pub async fn store_ended(&self, ended: &[Ended]) -> Result<()> {
        if ended.is_empty() {
            return Ok(());
        }
        let keys: Vec<DeliveryKey> = ended.iter().map(|ended| ended.key).collect();
        let applications: Column<Uuid> =
            ended.iter().map(|ended| ended.application_id.into()).collect();
        let causes: Column<Option<String>> =
            ended.iter().map(|ended| ended.cause.as_ref().map(Cause::to_string)).collect();
        let number = |read: fn(&Ended) -> i64| ended.iter().map(read).collect::<Column<i64>>();
        let statuses: Column<Option<i64>> =
            ended.iter().map(|ended| ended.last_status.map(i64::from)).collect();
        let row = params![
            endpoints(&keys),
            messages(&keys),
            applications,
            number(|ended| ended.state),
            causes,
            number(|ended| ended.attempts.into()),
            number(|ended| ended.lease_number.into()),
            number(|ended| micros(ended.accepted_at)),
            number(|ended| micros(ended.ended_at)),
            statuses,
        ];
        self.run(sql::ENDED_STORE, row).await.map(drop)
    }

    pub async fn add_tallies(&self, worker: WorkerId, tallies: &[Tally]) -> Result<()> {
        if tallies.is_empty() {
            return Ok(());
        }
        let number = |read: fn(&Tally) -> i64| tallies.iter().map(read).collect::<Column<i64>>();
        let row = params![
            number(|tally| tally.minute),
            Uuid::from(worker),
            number(|tally| tally.delivered.into()),
            number(|tally| tally.failed.into()),
            number(|tally| tally.failed_attempts.into()),
            number(|tally| tally.timed.into()),
            number(|tally| tally.delivery_time),
        ];
        self.run(sql::TALLY_ADD, row).await.map(drop)
    }

    /// Workers that may hold leases from now on: their rows are there.
    pub async fn see_workers(&self, seen: &BTreeMap<WorkerId, Timestamp>) -> Result<()> {
        if seen.is_empty() {
            return Ok(());
        }
        let ids: Column<Uuid> = seen.keys().map(|id| (*id).into()).collect();
        let at: Column<i64> = seen.values().map(|at| micros(*at)).collect();
        self.run(super::upkeep::sql::WORKER_SEE, params![ids, at]).await.map(drop)
    }

    /// Disables the endpoint of a locked lane because of how its receiver answers. What waits is
    /// held by the steps that follow. The application is locked, and was before the lane.
    pub async fn disable(&self, lane: &mut Lane, notice: &LaneNotice) -> Result<()> {
        let reason = match notice.event {
            Event::Gone => DisabledReason::Gone,
            _ => DisabledReason::Failing,
        };
        let id = Uuid::from(lane.endpoint_id);
        let reason = rows::disabled_text(reason);
        self.run(sql::ENDPOINT_DISABLE, params![id, reason, micros(notice.at)]).await?;
        self.close_lane(lane.endpoint_id, LaneState::Disabled).await?;
        self.run(sql::ROUTES_RAISE, params![Uuid::from(lane.application_id)]).await?;
        lane.state = LaneState::Disabled;
        lane.next_due_at = None;
        self.notice(lane, notice).await
    }

    /// Nothing of the lane goes any more; a sweep holds or cancels what waits.
    pub async fn close_lane(&self, id: EndpointId, state: LaneState) -> Result<()> {
        let sweep = state.column();
        let row = params![Uuid::from(id), state.column(), sweep];
        self.run(sql::LANE_CLOSE, row).await.map(drop)
    }

    /// Leaves word of an event for operators.
    pub async fn notice(&self, lane: &Lane, notice: &LaneNotice) -> Result<()> {
        let Some((kind, detail)) = notice.text() else { return Ok(()) };
        let row = params![
            Uuid::from(notice.id(lane.endpoint_id)),
            Uuid::from(lane.application_id),
            Uuid::from(lane.endpoint_id),
            kind,
            detail,
        ];
        self.run(sql::NOTICE_INSERT, row).await.map(drop)
    }

    pub async fn open_deliveries(
        &self,
        keys: &[DeliveryKey],
    ) -> Result<BTreeMap<DeliveryKey, Open>> {
        let row = params![endpoints(keys), messages(keys)];
        let found = self
            .all(sql::DELIVERY_FIND, row, |row| {
                let key = DeliveryKey { endpoint_id: row.id()?, message_id: row.id()? };
                Ok((key, Open::read(row)?))
            })
            .await?;
        Ok(found.into_iter().collect())
    }

    pub async fn remove_deliveries(&self, keys: &[DeliveryKey]) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let row = params![endpoints(keys), messages(keys)];
        self.run(sql::DELIVERY_REMOVE, row).await.map(drop)
    }

    /// Makes leased deliveries wait again, at once, if `in_force` says so of what they are under
    /// the lock; those whose endpoint is disabled are held, those whose endpoint is deleted end. If
    /// one was the probe, another may go. `counted`: whether their attempts stay counted.
    pub async fn release(
        &self,
        keys: &[DeliveryKey],
        now: Timestamp,
        counted: bool,
        in_force: impl Fn(&DeliveryKey, &Open) -> bool,
    ) -> Result<usize> {
        if keys.is_empty() {
            return Ok(0);
        }
        let lanes = async { self.lanes(keys.iter().map(|key| key.endpoint_id)).await };
        let open = async { self.open_deliveries(keys).await };
        let (mut lanes, mut open) = tokio::try_join!(biased; lanes, open)?;
        open.retain(|key, open| open.state == rows::LEASED && in_force(key, open));
        let mut released = Released::default();
        for (key, open) in &open {
            let lane = lanes.get_mut(&key.endpoint_id);
            let lane =
                lane.ok_or_else(|| Error::new(Kind::Internal, "a delivery without a lane"))?;
            released.add(lane, *key, open, now);
        }
        let probes = lanes.values().filter(|lane| released.probes.contains(&lane.endpoint_id));
        tokio::try_join!(biased;
            self.store_lanes(probes),
            self.remove_deliveries(&released.removed),
            self.store_ended(&released.ended),
            self.make_wait(&released.keys, &released.states, now, counted),
            self.pull_lanes(&released.due),
        )?;
        Ok(open.len())
    }

    async fn make_wait(
        &self,
        keys: &[DeliveryKey],
        states: &[i64],
        now: Timestamp,
        counted: bool,
    ) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let states: Column<i64> = states.iter().copied().collect();
        let row = params![endpoints(keys), messages(keys), states, micros(now), counted];
        self.run(sql::DELIVERY_RELEASE, row).await.map(drop)
    }
}

/// What becomes of deliveries that are released.
#[derive(Default)]
struct Released {
    /// Lanes whose probe came back.
    probes: BTreeSet<EndpointId>,
    removed: Vec<DeliveryKey>,
    ended: Vec<Ended>,
    keys: Vec<DeliveryKey>,
    states: Vec<i64>,
    due: BTreeMap<EndpointId, Timestamp>,
}

impl Released {
    fn add(&mut self, lane: &mut Lane, key: DeliveryKey, open: &Open, now: Timestamp) {
        if open.lease_until.is_some_and(|until| lane.health.awaits(until)) {
            lane.health.breaker.release_probe(now, Duration::ZERO);
            self.probes.insert(lane.endpoint_id);
        }
        if lane.state == LaneState::Deleted {
            self.removed.push(key);
            let ended = open.ended(key, rows::CANCELLED, Cause::EndpointDeleted, now);
            self.ended.push(ended);
            return;
        }
        self.keys.push(key);
        self.states.push(lane.state.waits_as());
        self.due.insert(lane.endpoint_id, now);
    }
}
