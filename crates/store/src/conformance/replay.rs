//! Replays: tasks that send again what was given up or held.

use super::Ground;
use super::world::*;
use crate::upkeep::TaskStatus;
use posthaste_core::delivery::{Class, DeliveryKey, DeliveryState, Trigger};
use posthaste_core::endpoint::{Application, Endpoint};
use posthaste_core::limits::PAYLOAD_KEPT_FOR_DAYS;
use std::collections::BTreeSet;
use std::time::Duration;

/// An endpoint with so many dead letters, a second apart.
async fn graveyard(world: &World, count: usize) -> (Application, Endpoint, Vec<DeliveryKey>) {
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    let mut keys = Vec::new();
    for _ in 0..count {
        keys.push(key(&endpoint, world.publish(&application).await));
        let job = world.claim_one(worker(1)).await;
        world.kill(&job).await;
        world.pass_secs(1);
    }
    (application, endpoint, keys)
}

pub async fn dead_letters_are_replayed_once(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let (_, endpoint, keys) = graveyard(&world, 5).await;
    let task = world.replay(&endpoint, &[DeliveryState::DeadLetter]);
    world.store.start_task(task.clone()).await.unwrap();
    world.store.start_task(task.clone()).await.unwrap();
    assert_eq!(world.steps().await, 1);
    let done = world.store.task(task.id).await.unwrap().unwrap();
    assert_eq!((done.status, done.replayed), (TaskStatus::Finished, 5));
    assert_eq!(done.application_id, task.application_id);
    let jobs = world.claim(worker(1)).await;
    let claimed: BTreeSet<_> = jobs.iter().map(|job| job.delivery.key).collect();
    assert_eq!(claimed, keys.iter().copied().collect());
    for job in &jobs {
        world.kill(job).await;
    }
    world.steps().await;
    assert!(world.claim(worker(1)).await.is_empty(), "a finished task does nothing more");
    assert_eq!(world.store.status(world.now()).await.unwrap().dead_letter, 5);
}

pub async fn window_of_a_replay(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let start = world.now();
    let (_, endpoint, keys) = graveyard(&world, 5).await;
    let mut task = world.replay(&endpoint, &[DeliveryState::DeadLetter]);
    task.since = start.after(Duration::from_secs(1));
    task.until = start.after(Duration::from_secs(3));
    world.store.start_task(task).await.unwrap();
    world.steps().await;
    let claimed: Vec<_> = world.claim(worker(1)).await.iter().map(|job| job.delivery.key).collect();
    assert_eq!(claimed, keys[1..3]);
}

pub async fn paced_replay(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let (_, endpoint, _) = graveyard(&world, 6).await;
    let mut task = world.replay(&endpoint, &[DeliveryState::DeadLetter]);
    task.rate_per_second = Some(2);
    world.store.start_task(task).await.unwrap();
    world.steps().await;
    let mut counts = Vec::new();
    for _ in 0..7 {
        counts.push(world.claim(worker(1)).await.len());
        world.pass(Duration::from_millis(500));
    }
    assert_eq!(counts, [1, 1, 1, 1, 1, 1, 0]);
}

pub async fn replay_goes_on_after_a_restart(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    world.disable(&endpoint).await;
    for _ in 0..1_200 {
        world.publish(&application).await;
    }
    world.enable(&endpoint).await;
    let task = world.replay(&endpoint, &[DeliveryState::Held, DeliveryState::DeadLetter]);
    world.store.start_task(task.clone()).await.unwrap();
    world.store.step(world.now()).await.unwrap();
    let part = world.store.task(task.id).await.unwrap().unwrap();
    assert_eq!(part.status, TaskStatus::Running);
    assert!(part.replayed > 0 && part.replayed < 1_200);
    world.store.close().await.unwrap();
    let again = world.another(ground).await;
    again.steps().await;
    let whole = again.store.task(task.id).await.unwrap().unwrap();
    assert_eq!((whole.status, whole.replayed), (TaskStatus::Finished, 1_200));
    let status = again.store.status(again.now()).await.unwrap();
    assert_eq!((status.pending, status.held), (1_200, 0));
}

pub async fn replay_of_a_deleted_endpoint(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let (_, endpoint, keys) = graveyard(&world, 2).await;
    let task = world.replay(&endpoint, &[DeliveryState::DeadLetter]);
    world.store.start_task(task.clone()).await.unwrap();
    world.store.delete_endpoint(endpoint.id, world.now()).await.unwrap();
    world.steps().await;
    let task = world.store.task(task.id).await.unwrap().unwrap();
    assert_eq!((task.status, task.replayed), (TaskStatus::Finished, 0));
    assert_eq!(world.state(keys[0]).await, DeliveryState::DeadLetter);
}

pub async fn replay_of_a_disabled_endpoint_waits(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let (_, endpoint, _) = graveyard(&world, 2).await;
    world.disable(&endpoint).await;
    let task = world.replay(&endpoint, &[DeliveryState::DeadLetter]);
    world.store.start_task(task.clone()).await.unwrap();
    world.steps().await;
    let waiting = world.store.task(task.id).await.unwrap().unwrap();
    assert_eq!((waiting.status, waiting.replayed), (TaskStatus::Running, 0));
    world.enable(&endpoint).await;
    world.steps().await;
    assert_eq!(world.claim(worker(1)).await.len(), 2);
}

pub async fn attempts_are_numbered_on(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let (_, endpoint, _) = graveyard(&world, 1).await;
    let task = world.replay(&endpoint, &[DeliveryState::DeadLetter]);
    world.store.start_task(task).await.unwrap();
    world.steps().await;
    let job = world.claim_one(worker(1)).await;
    assert_eq!((job.delivery.attempt, job.delivery.plan_attempt), (2, 1));
    assert_eq!((job.delivery.class, job.delivery.trigger), (Class::Replay, Trigger::Scheduled));
    world.retry(&job, 1).await;
    world.pass_secs(1);
    let job = world.claim_one(worker(1)).await;
    assert_eq!((job.delivery.attempt, job.delivery.plan_attempt), (3, 2));
    assert_eq!(job.delivery.class, Class::Replay, "what is replayed stays behind the rest");
}

pub async fn late_record_of_an_earlier_life(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    world.publish(&application).await;
    let late = world.claim_one(worker(1)).await;
    world.kill(&late).await;
    let task = world.replay(&endpoint, &[DeliveryState::DeadLetter]);
    world.store.start_task(task).await.unwrap();
    world.steps().await;
    let job = world.claim_one(worker(1)).await;
    assert!(job.delivery.lease.number > late.delivery.lease.number);
    assert_eq!(world.deliver(&late).await.stale.len(), 1);
    assert_eq!(world.state(job.delivery.key).await, DeliveryState::InFlight);
}

pub async fn replayed_ones_go_last(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let (application, endpoint, _) = graveyard(&world, 3).await;
    let task = world.replay(&endpoint, &[DeliveryState::DeadLetter]);
    world.store.start_task(task).await.unwrap();
    world.steps().await;
    world.pass_secs(1);
    world.publish(&application).await;
    let classes: Vec<_> =
        world.claim(worker(1)).await.iter().map(|job| job.delivery.class).collect();
    assert_eq!(classes, [Class::First, Class::Replay, Class::Replay, Class::Replay]);
}

pub async fn replay_of_no_state(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let (_, endpoint, keys) = graveyard(&world, 1).await;
    let task = world.replay(&endpoint, &[]);
    world.store.start_task(task.clone()).await.unwrap();
    world.steps().await;
    let done = world.store.task(task.id).await.unwrap().unwrap();
    assert_eq!((done.status, done.replayed), (TaskStatus::Finished, 0));
    assert_eq!(world.state(keys[0]).await, DeliveryState::DeadLetter);
}

/// More than one step of them, so that steps of nothing but skipped ones go on.
pub async fn replay_without_payload(ground: &dyn Ground) {
    const HELD: usize = 600;
    let world = World::new(ground).await;
    let (application, endpoint, dead) = graveyard(&world, 2).await;
    world.disable(&endpoint).await;
    for _ in 0..HELD {
        world.publish(&application).await;
    }
    world.pass_secs(u64::from(PAYLOAD_KEPT_FOR_DAYS) * 86_400);
    while world.store.prune(world.now()).await.unwrap() > 0 {}
    world.enable(&endpoint).await;
    let with_payload = key(&endpoint, world.publish(&application).await);
    let job = world.claim_one(worker(1)).await;
    world.kill(&job).await;
    let task = world.replay(&endpoint, &[DeliveryState::DeadLetter, DeliveryState::Held]);
    world.store.start_task(task.clone()).await.unwrap();
    world.steps().await;
    let done = world.store.task(task.id).await.unwrap().unwrap();
    let skipped = (dead.len() + HELD) as u64;
    assert_eq!((done.status, done.replayed, done.skipped), (TaskStatus::Finished, 1, skipped));
    assert_eq!(world.state(dead[0]).await, DeliveryState::DeadLetter, "never opened");
    // Claims give the rest up on their way to what can be sent.
    let mut claimed = Vec::new();
    for _ in 0..=HELD {
        claimed.extend(world.claim(worker(1)).await);
    }
    let claimed: Vec<_> = claimed.iter().map(|job| job.delivery.key).collect();
    assert_eq!(claimed, [with_payload]);
    assert_eq!(world.store.status(world.now()).await.unwrap().held, 0);
}
