//! Claiming and giving back.

use super::Ground;
use super::world::*;
use posthaste_core::delivery::{Class, DeliveryState, Verdict};
use posthaste_core::endpoint::EndpointUrl;
use posthaste_core::limits::{ATTEMPTS_MAX, HEARTBEAT_LOST_AFTER};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

pub async fn claims_count_attempts(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.publish(&application).await;
    for attempt in 1..=4 {
        let job = world.claim_one(worker(1)).await;
        assert_eq!(job.delivery.attempt, attempt);
        assert_eq!(job.delivery.plan_attempt, attempt);
        assert_eq!(job.delivery.lease.number, attempt);
        assert_eq!(job.delivery.class, Class::of_attempt(attempt));
        assert_eq!(world.delivery(job.delivery.key).await.attempts, attempt);
        let at = world.now().after(Duration::from_secs(1));
        // 429 leaves the breaker alone.
        world.record(&job, status(429), Verdict::RetryAt(at)).await;
        world.pass_secs(1);
    }
}

pub async fn longest_waiting_lane_first(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let mut expected = Vec::new();
    for _ in 0..3 {
        let application = world.application().await;
        expected.push(world.endpoint(&application).await.id);
        world.publish(&application).await;
        world.pass_secs(1);
    }
    let mut request = world.request(worker(1));
    request.deliveries_max = 2;
    let first = world.store.claim(request).await.unwrap();
    assert_eq!(first.next_due_at.map(|at| at <= world.now()), Some(true));
    let second = world.claimed(worker(1)).await;
    let lanes = first.lanes.iter().chain(&second.lanes).map(|lane| lane.endpoint.id);
    assert_eq!(lanes.collect::<Vec<_>>(), expected);
}

pub async fn lane_gives_its_share(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let (busy, other) = (world.application().await, world.application().await);
    let busy_lane = world.endpoint(&busy).await.id;
    for _ in 0..10 {
        world.publish(&busy).await;
    }
    world.pass_secs(1);
    let other_lane = world.endpoint(&other).await.id;
    world.publish(&other).await;
    let mut seen = Vec::new();
    for _ in 0..4 {
        world.pass(Duration::from_micros(1));
        let mut request = world.request(worker(1));
        (request.deliveries_max, request.lane_max) = (2, 2);
        let claimed = world.store.claim(request).await.unwrap();
        seen.push((claimed.lanes[0].endpoint.id, claimed.lanes[0].deliveries.len()));
    }
    // After its share, the busy lane goes behind the one that waits.
    assert_eq!(seen[0], (busy_lane, 2));
    assert_eq!(seen[1].0, other_lane);
    assert_eq!(seen[2..], [(busy_lane, 2), (busy_lane, 2)]);
}

pub async fn claim_is_bounded(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    for _ in 0..5 {
        world.endpoint(&application).await;
    }
    for _ in 0..4 {
        world.publish(&application).await;
    }
    let mut request = world.request(worker(1));
    request.deliveries_max = 7;
    assert_eq!(jobs(world.store.claim(request).await.unwrap()).len(), 7);
    let rest = world.claimed(worker(1)).await;
    assert_eq!(rest.next_due_at, None);
    assert_eq!(jobs(rest).len(), 13);
}

pub async fn full_lanes_are_passed_over(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let (full, other) = (world.application().await, world.application().await);
    let full_lane = world.endpoint(&full).await.id;
    let other_lane = world.endpoint(&other).await.id;
    world.publish(&full).await;
    world.publish(&other).await;
    let mut request = world.request(worker(1));
    request.full = vec![(full_lane, 0)];
    let claimed = world.store.claim(request).await.unwrap();
    assert_eq!(claimed.lanes.len(), 1);
    assert_eq!(claimed.lanes[0].endpoint.id, other_lane);
    assert_eq!(claimed.next_due_at, None, "what waits is in a full lane");
    assert_eq!(world.claim(worker(1)).await.len(), 1);
}

pub async fn full_lane_with_some_room(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let lane = world.endpoint(&application).await.id;
    for _ in 0..5 {
        world.publish(&application).await;
    }
    let mut request = world.request(worker(1));
    request.full = vec![(lane, 3)];
    let claimed = world.store.claim(request.clone()).await.unwrap();
    assert_eq!(claimed.next_due_at, None);
    assert_eq!(jobs(claimed).len(), 3);
    // With room for more than is due, the rest is told.
    let job = world.claim_one_of(worker(1), 2).await;
    world.retry(&job, 60).await;
    let claimed = world.store.claim(request).await.unwrap();
    assert_eq!(claimed.next_due_at, Some(world.now().after(Duration::from_secs(60))));
}

impl World {
    /// Claims, and gives the first of `count`.
    async fn claim_one_of(&self, worker: posthaste_core::id::WorkerId, count: usize) -> Job {
        let mut jobs = self.claim(worker).await;
        assert_eq!(jobs.len(), count);
        jobs.remove(0)
    }
}

pub async fn next_due_is_told(ground: &dyn Ground) {
    let world = World::new(ground).await;
    assert_eq!(world.claimed(worker(1)).await.next_due_at, None);
    let application = world.application().await;
    world.endpoint(&application).await;
    world.publish(&application).await;
    let job = world.claim_one(worker(1)).await;
    assert_eq!(world.claimed(worker(1)).await.next_due_at, None);
    world.retry(&job, 90).await;
    let due = world.now().after(Duration::from_secs(90));
    assert_eq!(world.claimed(worker(1)).await.next_due_at, Some(due));
}

pub async fn classes_share_a_lane(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    for _ in 0..4 {
        world.publish(&application).await;
    }
    let failed = world.claim(worker(1)).await;
    for job in &failed {
        let at = world.now().after(Duration::from_secs(1));
        world.record(job, status(429), Verdict::RetryAt(at)).await;
    }
    world.pass_secs(2);
    for _ in 0..20 {
        world.publish(&application).await;
    }
    let mut request = world.request(worker(1));
    request.lane_max = 8;
    let classes: Vec<_> = jobs(world.store.claim(request).await.unwrap())
        .iter()
        .map(|job| job.delivery.class)
        .collect();
    assert_eq!(classes.len(), 8);
    let retries = classes.iter().filter(|class| **class == Class::EarlyRetry).count();
    assert_eq!(retries, 1, "an eighth is kept for retries, the rest is for first attempts");
    assert!(classes.is_sorted(), "first attempts go first");
}

pub async fn give_back_uncounts(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.publish(&application).await;
    let job = world.claim_one(worker(1)).await;
    world.store.give_back(vec![job.delivery], world.now()).await.unwrap();
    let delivery = world.delivery(job.delivery.key).await;
    assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Pending, 0));
    let again = world.claim_one(worker(2)).await;
    assert_eq!((again.delivery.attempt, again.delivery.plan_attempt), (1, 1));
    assert_eq!(again.delivery.lease.number, 2, "lease numbers are never used again");
    assert_eq!(world.deliver(&job).await.stale.len(), 1);
}

pub async fn late_give_back_is_ignored(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.publish(&application).await;
    let late = world.claim_one(worker(1)).await;
    world.store.give_back(vec![late.delivery], world.now()).await.unwrap();
    let job = world.claim_one(worker(2)).await;
    world.store.give_back(vec![late.delivery], world.now()).await.unwrap();
    assert_eq!(world.state(job.delivery.key).await, DeliveryState::InFlight);
    world.deliver(&job).await;
    world.store.give_back(vec![job.delivery], world.now()).await.unwrap();
    assert_eq!(world.state(job.delivery.key).await, DeliveryState::Delivered);
}

pub async fn endpoint_as_it_is_now(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    for url in ["https://one.example/", "https://two.example/", "https://three.example/"] {
        world.publish(&application).await;
        let changed = world
            .change(&endpoint, |endpoint| endpoint.url = EndpointUrl::parse(url).unwrap())
            .await;
        let job = world.claim_one(worker(1)).await;
        assert_eq!(*job.endpoint, changed);
    }
}

pub async fn fan_out_shares_the_message(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    for _ in 0..50 {
        world.endpoint(&application).await;
    }
    let message = world.publish(&application).await;
    let jobs = world.claim(worker(1)).await;
    let lanes: BTreeSet<_> = jobs.iter().map(|job| job.delivery.key.endpoint_id).collect();
    assert_eq!((jobs.len(), lanes.len()), (50, 50));
    assert!(jobs.iter().all(|job| job.message.id == message));
    assert!(jobs.iter().all(|job| Arc::ptr_eq(&job.message, &jobs[0].message)));
}

pub async fn attempts_run_out(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    let message = world.publish(&application).await;
    // Every worker that takes it dies of it.
    for _ in 0..ATTEMPTS_MAX {
        world.claim_one(worker(1)).await;
        world.pass_secs(31);
        world.store.recover(world.now(), world.now().before(LEASE)).await.unwrap();
    }
    assert!(world.claim(worker(1)).await.is_empty());
    let delivery = world.delivery(key(&endpoint, message)).await;
    assert_eq!(delivery.state, DeliveryState::DeadLetter);
    assert_eq!(delivery.attempts, ATTEMPTS_MAX);
    assert!(delivery.cause.unwrap().starts_with("exhausted"));
}

pub async fn payload_gone(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    let mut message = world.message(&application);
    message.expires_at = world.now().after(Duration::from_secs(60));
    let message = world.publish_message(message).await;
    world.pass_secs(61);
    assert_eq!(world.store.prune(world.now()).await.unwrap(), 1);
    assert!(world.claim(worker(1)).await.is_empty());
    let delivery = world.delivery(key(&endpoint, message)).await;
    assert_eq!((delivery.state, delivery.attempts), (DeliveryState::DeadLetter, 0));
    assert_eq!(delivery.cause.as_deref(), Some("payload gone"));
    assert_eq!(world.store.status(world.now()).await.unwrap().failed_last_hour, 1);
}

/// What is given up takes nobody's place: another lane gets the room in the same claim.
pub async fn given_up_makes_room(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    let mut message = world.message(&application);
    message.expires_at = world.now().after(Duration::from_secs(60));
    world.publish_message(message).await;
    world.pass_secs(61);
    assert_eq!(world.store.prune(world.now()).await.unwrap(), 1);
    let other = world.application().await;
    world.endpoint(&other).await;
    world.publish(&other).await;
    let mut request = world.request(worker(1));
    request.deliveries_max = 1;
    let jobs = jobs(world.store.claim(request).await.unwrap());
    assert_eq!(jobs.len(), 1);
    assert_eq!(jobs[0].delivery.application_id, other.id);
}

/// Whoever takes leases lives, even if it was given up before: nobody takes them over at once.
pub async fn silent_worker_that_claims_again(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.store.heartbeat(worker(1), world.now()).await.unwrap();
    let silent_since = world.pass_secs(60).before(HEARTBEAT_LOST_AFTER);
    assert_eq!(world.store.recover(world.now(), silent_since).await.unwrap(), 0);
    world.publish(&application).await;
    let job = world.claim_one(worker(1)).await;
    assert_eq!(world.store.status(world.now()).await.unwrap().workers, 1);
    assert_eq!(world.store.recover(world.now(), silent_since).await.unwrap(), 0);
    assert!(world.deliver(&job).await.stale.is_empty());
}
