//! The fast path: deliveries that are committed already leased to the process that accepted them.

use crate::Queue;
use async_trait::async_trait;
use posthaste_core::delivery::{Class, DeliveryKey, Lease, LeasedDelivery, Trigger};
use posthaste_core::endpoint::Endpoint;
use posthaste_core::id::EndpointId;
use posthaste_core::message::Message;
use posthaste_core::routing::Routes;
use posthaste_store::outbox::{LeaseTerms, NewDelivery, Start};
use std::sync::Arc;

/// A delivery under lease with all that its attempt needs.
#[derive(Clone, Debug)]
pub struct Job {
    pub delivery: LeasedDelivery,
    pub message: Arc<Message>,
    pub endpoint: Arc<Endpoint>,
}

/// The worker's side of the fast path.
#[async_trait]
pub trait FastPath: Send + Sync {
    /// The terms of a lease taken now, or `None` when the worker takes nothing (it is stopping).
    fn terms(&self) -> Option<LeaseTerms>;

    /// Room for one delivery with a payload of `bytes`, if its lane is healthy, has nothing waiting
    /// in the store that should go first, and the worker has capacity.
    fn reserve(&self, endpoint: EndpointId, bytes: usize) -> Option<Room>;

    /// Takes deliveries over for which room was reserved.
    fn hand_over(&self, jobs: Vec<Job>);

    /// Gives reserved room back unused.
    fn release(&self, room: Room);

    /// Returns when there is room in memory for deliveries to these endpoints; at once, if there
    /// is. Endpoints that do not answer well are not waited for.
    async fn relieved(&self, endpoints: &[Arc<Endpoint>]);
}

/// Reserved room for one delivery.
#[derive(Debug, PartialEq, Eq)]
pub struct Room {
    pub endpoint_id: EndpointId,
    pub bytes: usize,
}

/// A message on its way into the store: which of its deliveries this process will send itself.
///
/// **Invariant:** room is given back unless the offer is `committed`.
pub struct Offer<'queue> {
    queue: &'queue Queue,
    message: Arc<Message>,
    endpoints: Vec<Arc<Endpoint>>,
    deliveries: Vec<NewDelivery>,
    lease: Option<LeaseTerms>,
    rooms: Vec<Room>,
}

impl Queue {
    /// Finds out how each delivery of `message` starts. Endpoints with a rate limit, and those of
    /// an application with one, go through the store, where limits hold over all processes.
    pub fn offer(&self, routes: &Routes, message: Arc<Message>) -> Offer<'_> {
        let endpoints: Vec<_> = routes.matching(&message).cloned().collect();
        let bytes = message.payload.as_ref().map_or(0, bytes::Bytes::len);
        let fast_path = self.fast_path.get();
        let lease = match routes.application.throttle_rate {
            None => fast_path.and_then(|path| path.terms()),
            Some(_) => None,
        };
        let mut rooms = Vec::new();
        let deliveries = endpoints
            .iter()
            .map(|endpoint| {
                let start = if endpoint.disabled.is_some() {
                    Start::Held
                } else if lease.is_none() || endpoint.rate_limit().is_some() {
                    Start::Due
                } else if let Some(room) =
                    fast_path.and_then(|path| path.reserve(endpoint.id, bytes))
                {
                    rooms.push(room);
                    Start::Leased
                } else {
                    Start::Due
                };
                NewDelivery { endpoint_id: endpoint.id, start }
            })
            .collect();
        Offer { queue: self, message, endpoints, deliveries, lease, rooms }
    }
}

impl Offer<'_> {
    pub fn deliveries(&self) -> &[NewDelivery] {
        &self.deliveries
    }

    pub fn lease(&self) -> Option<LeaseTerms> {
        self.lease
    }

    /// The store has it: hand over what is leased to this process, nudge for the rest.
    pub fn committed(mut self) {
        self.rooms.clear();
        if self.deliveries.iter().any(|delivery| delivery.start == Start::Due) {
            self.queue.nudge();
        }
        let (Some(terms), Some(fast_path)) = (self.lease, self.queue.fast_path.get()) else {
            return;
        };
        let jobs: Vec<_> = self
            .endpoints
            .drain(..)
            .zip(&self.deliveries)
            .filter(|(_, delivery)| delivery.start == Start::Leased)
            .map(|(endpoint, _)| first_attempt(terms, &self.message, endpoint))
            .collect();
        if !jobs.is_empty() {
            fast_path.hand_over(jobs);
        }
    }
}

impl Drop for Offer<'_> {
    fn drop(&mut self) {
        if let Some(fast_path) = self.queue.fast_path.get() {
            for room in self.rooms.drain(..) {
                fast_path.release(room);
            }
        }
    }
}

/// What the store commits for `Start::Leased`: lease number 1, attempt 1.
fn first_attempt(terms: LeaseTerms, message: &Arc<Message>, endpoint: Arc<Endpoint>) -> Job {
    Job {
        delivery: LeasedDelivery {
            key: DeliveryKey { endpoint_id: endpoint.id, message_id: message.id },
            application_id: message.application_id,
            lease: Lease { worker_id: terms.worker_id, number: 1, until: terms.until },
            attempt: 1,
            plan_attempt: 1,
            class: Class::First,
            trigger: Trigger::Scheduled,
            planned_at: None,
            accepted_at: message.created_at,
            probe: false,
        },
        message: message.clone(),
        endpoint,
    }
}
