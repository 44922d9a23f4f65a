//! What a claim reads and writes of the lanes that it looks at, many at once.

use super::Core;
use super::db::{Column, Tx, Uuid, params};
use super::lanes::{micros, sql};
use crate::Result;
use crate::lanes::Lane;
use crate::outbox::Claim;
use crate::pick::{Terms, Waiting};
use crate::rows;
use posthaste_core::delivery::{Class, LeasedDelivery};
use posthaste_core::endpoint::Endpoint;
use posthaste_core::id::{ApplicationId, EndpointId};
use posthaste_core::limiter::{LimiterState, RateLimit};
use posthaste_core::message::Message;
use posthaste_core::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A lane that may give something.
pub(super) struct Admitted {
    pub lane: Lane,
    pub endpoint: Arc<Endpoint>,
    pub terms: Terms,
    /// Waiting deliveries by class.
    pub classes: Vec<Vec<Waiting>>,
    /// Those that go, and how many might have.
    pub candidates: Vec<Waiting>,
    pub wanted: usize,
    pub retry_at: Option<Timestamp>,
    pub leased: Vec<(LeasedDelivery, Arc<Message>)>,
}

impl Admitted {
    pub fn new(lane: Lane, endpoint: Arc<Endpoint>, terms: Terms) -> Self {
        Self {
            lane,
            endpoint,
            terms,
            classes: Vec::new(),
            candidates: Vec::new(),
            wanted: 0,
            retry_at: None,
            leased: Vec::new(),
        }
    }
}

/// The one that goes as a probe: the next of the classes among those that are due, else whatever
/// is due first. `classes` hold the earliest of each.
pub(super) fn pick_probe(classes: Vec<Vec<Waiting>>, now: Timestamp) -> Vec<Waiting> {
    let earliest: Vec<Waiting> = classes.into_iter().flatten().collect();
    let due = earliest.iter().position(|waiting| waiting.due_at <= now);
    let first = || {
        let by_time = earliest.iter().enumerate().min_by_key(|(_, waiting)| waiting.due_at);
        by_time.map(|(index, _)| index)
    };
    let Some(index) = due.or_else(first) else { return Vec::new() };
    earliest.into_iter().nth(index).into_iter().collect()
}

/// How many deliveries are under lease, of lanes that have a ramp.
pub(super) async fn leased(tx: &Tx, lanes: &[Lane]) -> Result<BTreeMap<EndpointId, i64>> {
    let ramped = lanes.iter().filter(|lane| lane.health.ramp.is_some());
    let ids: Column<Uuid> = ramped.map(|lane| lane.endpoint_id.into()).collect();
    if ids.0.is_empty() {
        return Ok(BTreeMap::new());
    }
    let counts = tx.all(sql::LANE_LEASED, params![ids], |row| Ok((row.id()?, row.int()?))).await?;
    Ok(counts.into_iter().collect())
}

/// The limiters of applications that have one.
#[derive(Default)]
pub(super) struct Limits {
    pub locked: BTreeMap<ApplicationId, (RateLimit, LimiterState)>,
    /// Somebody else has them.
    pub busy: BTreeSet<ApplicationId>,
}

/// Locks the limiters of those applications that have one. `last` is the greatest of those that
/// this transaction has asked for before: waiting for a smaller one might be waiting in a circle,
/// so it is got at once or not at all.
pub(super) async fn limits(
    tx: &Tx,
    asked: &[ApplicationId],
    last: Option<ApplicationId>,
) -> Result<Limits> {
    let mut limits = Limits::default();
    let (greater, smaller): (Vec<ApplicationId>, Vec<_>) =
        asked.iter().copied().partition(|id| Some(*id) > last);
    for (ids, sql) in [(smaller, sql::APPLICATION_LIMIT_TRY), (greater, sql::APPLICATION_LIMIT)] {
        if ids.is_empty() {
            continue;
        }
        let ids: Column<Uuid> = ids.into_iter().map(Uuid::from).collect();
        let key = params![ids];
        let found = tx.all(sql, key, |row| {
            let id: ApplicationId = row.id()?;
            let rate: Option<u16> = row.opt_number()?;
            Ok((id, rate, row.opt_time()?))
        });
        for (id, rate, next_at) in found.await? {
            match (rate, next_at) {
                (Some(rate), Some(next_at)) => {
                    let limiter = (RateLimit::per_second(rate), LimiterState { next_at });
                    limits.locked.insert(id, limiter);
                }
                (Some(_), None) => drop(limits.busy.insert(id)),
                (None, _) => {}
            }
        }
    }
    Ok(limits)
}

/// Reads what waits in the lanes, as much as each may give, by class.
pub(super) async fn find_waiting(tx: &Tx, admitted: &mut [Admitted], now: Timestamp) -> Result<()> {
    let (mut ids, mut classes, mut until, mut limits) = (vec![], vec![], vec![], vec![]);
    for lane in &*admitted {
        for class in Class::ALL {
            let terms = lane.terms;
            // Replays keep the pace they were asked to have, unless one must serve as the probe.
            let early = terms.early && (class != Class::Replay || terms.probe);
            ids.push(Uuid::from(lane.lane.endpoint_id));
            classes.push(class as i64);
            until.push(micros(if early { Timestamp::MAX } else { now }));
            limits.push(i64::try_from(terms.room).unwrap_or(i64::MAX));
        }
    }
    let key = params![Column(ids), Column(classes), Column(until), Column(limits)];
    let found = tx
        .all(sql::WAITING_OF_CLASS, key, |row| {
            let id: EndpointId = row.id()?;
            Ok((id, Waiting::read(row)?))
        })
        .await?;
    let mut by_lane: BTreeMap<EndpointId, Vec<Vec<Waiting>>> = BTreeMap::new();
    for (id, waiting) in found {
        let classes = by_lane.entry(id).or_insert_with(|| vec![Vec::new(); Class::ALL.len()]);
        let index = Class::ALL.iter().position(|class| *class == waiting.class);
        if let Some(of_class) = index.and_then(|index| classes.get_mut(index)) {
            of_class.push(waiting);
        }
    }
    for lane in admitted {
        let mut found = by_lane.remove(&lane.lane.endpoint_id);
        for of_class in found.iter_mut().flatten() {
            of_class.sort_by_key(|waiting| waiting.due_at);
        }
        lane.classes = found.unwrap_or_else(|| vec![Vec::new(); Class::ALL.len()]);
    }
    Ok(())
}

/// When the next delivery of each lane is due.
pub(super) async fn earliest(
    tx: &Tx,
    chosen: &[Admitted],
) -> Result<BTreeMap<EndpointId, Timestamp>> {
    let ids: Column<Uuid> = chosen.iter().map(|lane| lane.lane.endpoint_id.into()).collect();
    let found = tx.all(sql::WAITING_NEXT, params![ids], |row| Ok((row.id()?, row.time()?))).await?;
    Ok(found.into_iter().collect())
}

impl Core {
    /// The endpoints of locked lanes as they are now, from memory as far as they are there.
    pub(super) async fn endpoints_of(
        &self,
        tx: &Tx,
        lanes: &[Lane],
    ) -> Result<BTreeMap<EndpointId, Arc<Endpoint>>> {
        let versions: BTreeMap<EndpointId, i64> =
            lanes.iter().map(|lane| (lane.endpoint_id, lane.endpoint_version)).collect();
        let mut found = BTreeMap::new();
        {
            let kept = self.endpoints();
            for (id, now) in &versions {
                if let Some((_, endpoint)) = kept.get(id).filter(|(version, _)| version == now) {
                    found.insert(*id, Arc::clone(endpoint));
                }
            }
        }
        let missing = versions.keys().filter(|id| !found.contains_key(id));
        let ids: Column<Uuid> = missing.map(|id| (*id).into()).collect();
        if ids.0.is_empty() {
            return Ok(found);
        }
        for endpoint in tx.all(sql::CLAIM_ENDPOINT, params![ids], rows::endpoint).await? {
            let endpoint = Arc::new(endpoint);
            if let Some(version) = versions.get(&endpoint.id) {
                self.keep_endpoint(*version, Arc::clone(&endpoint));
            }
            found.insert(endpoint.id, endpoint);
        }
        Ok(found)
    }
}

/// Writes the leases that were given.
pub(super) async fn write_leases(tx: &Tx, claim: &Claim, chosen: &[Admitted]) -> Result<()> {
    let leased = || chosen.iter().flat_map(|lane| &lane.leased).map(|(leased, _)| leased);
    if leased().next().is_none() {
        return Ok(());
    }
    let number = |read: fn(&LeasedDelivery) -> i64| leased().map(read).collect::<Column<i64>>();
    let endpoints: Column<Uuid> = leased().map(|one| one.key.endpoint_id.into()).collect();
    let messages: Column<Uuid> = leased().map(|one| one.key.message_id.into()).collect();
    let planned: Column<Option<i64>> = leased().map(|one| one.planned_at.map(micros)).collect();
    let row = params![
        endpoints,
        messages,
        number(|one| one.lease.number.into()),
        Uuid::from(claim.worker_id),
        micros(claim.now.after(claim.lease_for)),
        number(|one| one.attempt.into()),
        number(|one| one.plan_attempt.into()),
        number(|one| rows::trigger_column(one.trigger)),
        planned,
    ];
    tx.run(sql::DELIVERY_LEASE, row).await.map(drop)
}
