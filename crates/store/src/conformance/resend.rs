//! One more attempt by hand.

use super::Ground;
use super::world::*;
use crate::Kind;
use crate::outbox::Resent;
use posthaste_core::delivery::{DeliveryKey, DeliveryState, Trigger, Verdict};
use posthaste_core::id::MessageId;
use posthaste_core::limits::PAYLOAD_KEPT_FOR_DAYS;
use std::time::Duration;

/// A delivery with two failed attempts and a retry in half an hour.
async fn waiting(world: &World) -> (DeliveryKey, posthaste_core::time::Timestamp) {
    let application = world.application().await;
    world.endpoint(&application).await;
    world.publish(&application).await;
    let first = world.claim_one(worker(1)).await;
    world.retry(&first, 1).await;
    world.pass_secs(1);
    let second = world.claim_one(worker(1)).await;
    world.retry(&second, 1_800).await;
    let planned_at = world.now().after(Duration::from_secs(1_800));
    world.pass_secs(10);
    (first.delivery.key, planned_at)
}

async fn resend(world: &World, key: DeliveryKey) -> Resent {
    world.store.resend(key, world.now()).await.unwrap()
}

pub async fn f061_resend_of_a_waiting_one_succeeds(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let (key, planned_at) = waiting(&world).await;
    assert_eq!(resend(&world, key).await, Resent::Due);
    let job = world.claim_one(worker(1)).await;
    assert_eq!(job.delivery.trigger, Trigger::Manual);
    world.deliver(&job).await;
    // The retry that was planned is off.
    world.pass(planned_at.since(world.now()) + Duration::from_secs(1));
    assert!(world.claim(worker(1)).await.is_empty());
    let delivery = world.delivery(key).await;
    assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Delivered, 3));
}

pub async fn f061_resend_of_a_waiting_one_fails(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let (key, planned_at) = waiting(&world).await;
    assert_eq!(resend(&world, key).await, Resent::Due);
    let job = world.claim_one(worker(1)).await;
    assert_eq!((job.delivery.attempt, job.delivery.plan_attempt), (3, 2));
    assert_eq!(job.delivery.planned_at, Some(planned_at));
    world.record(&job, status(429), Verdict::RetryAt(planned_at)).await;
    let delivery = world.delivery(key).await;
    assert_eq!(delivery.state, DeliveryState::AwaitingRetry);
    assert_eq!(delivery.next_attempt_at, Some(planned_at));
    world.pass(planned_at.since(world.now()));
    let planned = world.claim_one(worker(1)).await;
    assert_eq!((planned.delivery.attempt, planned.delivery.plan_attempt), (4, 3));
    assert_eq!(planned.delivery.trigger, Trigger::Scheduled);
    assert_eq!(planned.delivery.planned_at, None);
}

pub async fn resend_in_flight(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.publish(&application).await;
    let job = world.claim_one(worker(1)).await;
    assert_eq!(resend(&world, job.delivery.key).await, Resent::InFlight);
    assert!(world.claim(worker(2)).await.is_empty());
    assert!(world.deliver(&job).await.stale.is_empty());
}

pub async fn resend_to_a_disabled_endpoint(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    world.publish(&application).await;
    let job = world.claim_one(worker(1)).await;
    world.kill(&job).await;
    world.disable(&endpoint).await;
    assert_eq!(resend(&world, job.delivery.key).await, Resent::EndpointDisabled);
    assert_eq!(world.state(job.delivery.key).await, DeliveryState::DeadLetter);
}

pub async fn resend_of_a_delivered_one_that_fails(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.publish(&application).await;
    let job = world.claim_one(worker(1)).await;
    world.deliver(&job).await;
    assert_eq!(resend(&world, job.delivery.key).await, Resent::Due);
    assert_eq!(world.state(job.delivery.key).await, DeliveryState::AwaitingRetry);
    let again = world.claim_one(worker(1)).await;
    assert_eq!((again.delivery.attempt, again.delivery.lease.number), (2, 2));
    assert_eq!(again.delivery.planned_at, None);
    world.kill(&again).await;
    let delivery = world.delivery(job.delivery.key).await;
    assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Delivered, 2));
    assert_eq!(delivery.cause, None);
}

pub async fn resend_of_a_dead_letter(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.publish(&application).await;
    let job = world.claim_one(worker(1)).await;
    world.kill(&job).await;
    for succeeds in [false, true] {
        assert_eq!(resend(&world, job.delivery.key).await, Resent::Due);
        let status = world.store.status(world.now()).await.unwrap();
        assert_eq!((status.dead_letter, status.awaiting_retry), (0, 1));
        let again = world.claim_one(worker(1)).await;
        let (expected, _) = match succeeds {
            false => (DeliveryState::DeadLetter, world.kill(&again).await),
            true => (DeliveryState::Delivered, world.deliver(&again).await),
        };
        assert_eq!(world.state(job.delivery.key).await, expected);
    }
    assert_eq!(world.store.status(world.now()).await.unwrap().dead_letter, 0);
}

pub async fn resend_of_a_held_one(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    world.disable(&endpoint).await;
    let message = world.publish(&application).await;
    let key = key(&endpoint, message);
    assert_eq!(resend(&world, key).await, Resent::EndpointDisabled);
    world.enable(&endpoint).await;
    assert!(world.claim(worker(1)).await.is_empty());
    assert_eq!(resend(&world, key).await, Resent::Due);
    world.deliver(&world.claim_one(worker(1)).await).await;
    assert_eq!(world.state(key).await, DeliveryState::Delivered);
}

pub async fn resend_of_one_never_routed(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let message = world.publish(&application).await;
    let endpoint = world.endpoint(&application).await;
    assert_eq!(world.store.delivery(key(&endpoint, message)).await.unwrap(), None);
    assert_eq!(resend(&world, key(&endpoint, message)).await, Resent::Due);
    let job = world.claim_one(worker(1)).await;
    assert_eq!((job.delivery.attempt, job.message.id), (1, message));
    world.deliver(&job).await;
    assert_eq!(world.state(key(&endpoint, message)).await, DeliveryState::Delivered);
}

pub async fn resend_of_nothing(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let (one, other) = (world.application().await, world.application().await);
    let endpoint = world.endpoint(&one).await;
    let message = world.publish(&one).await;
    let foreign = world.publish(&other).await;
    let unknown = MessageId::new(world.now(), world.random());
    for message in [foreign, unknown] {
        let error = world.store.resend(key(&endpoint, message), world.now()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
    }
    world.store.delete_endpoint(endpoint.id, world.now()).await.unwrap();
    let error = world.store.resend(key(&endpoint, message), world.now()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
}

pub async fn resend_without_payload(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.publish(&application).await;
    let job = world.claim_one(worker(1)).await;
    world.kill(&job).await;
    world.pass_secs(u64::from(PAYLOAD_KEPT_FOR_DAYS) * 86_400);
    world.store.prune(world.now()).await.unwrap();
    let error = world.store.resend(job.delivery.key, world.now()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Limit);
}

pub async fn resend_twice(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let (key, planned_at) = waiting(&world).await;
    resend(&world, key).await;
    world.pass_secs(1);
    assert_eq!(resend(&world, key).await, Resent::Due);
    let job = world.claim_one(worker(1)).await;
    assert_eq!(job.delivery.planned_at, Some(planned_at), "the plan is not forgotten");
}
