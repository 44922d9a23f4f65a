//! Workers, recovery, sweeps, retention, restarts.

use super::Ground;
use super::world::*;
use crate::Kind;
use crate::history::{AttemptFilter, MessageFilter};
use crate::outbox::{RecordBatch, Scope, WindowSketch};
use crate::upkeep::Step;
use posthaste_core::delivery::{DeliveryState, Verdict};
use posthaste_core::endpoint::{Application, Endpoint};
use posthaste_core::event::EventId;
use posthaste_core::id::MessageId;
use posthaste_core::latency::Sketch;
use std::time::Duration;

const SILENCE: Duration = Duration::from_secs(12);

async fn recover(world: &World) -> u64 {
    world.store.recover(world.now(), world.now().before(SILENCE)).await.unwrap()
}

pub async fn f069_leases_of_a_silent_worker(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    for _ in 0..20 {
        world.publish(&application).await;
    }
    world.store.heartbeat(worker(1), world.now()).await.unwrap();
    let lost = world.claim(worker(1)).await;
    assert_eq!(lost.len(), 20);
    world.pass_secs(13);
    world.store.heartbeat(worker(2), world.now()).await.unwrap();
    assert_eq!(recover(&world).await, 20);
    let jobs = world.claim(worker(2)).await;
    assert_eq!(jobs.len(), 20);
    // The attempts that were under way count: what kills its worker runs out of attempts.
    assert!(jobs.iter().all(|job| job.delivery.attempt == 2));
    assert!(jobs.iter().all(|job| job.delivery.plan_attempt == 2));
    assert_eq!(recover(&world).await, 0);
}

pub async fn live_worker_keeps_its_leases(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.publish(&application).await;
    let job = world.claim_one(worker(1)).await;
    for _ in 0..5 {
        world.pass_secs(5);
        world.store.heartbeat(worker(1), world.now()).await.unwrap();
        assert_eq!(recover(&world).await, 0);
    }
    assert!(world.deliver(&job).await.stale.is_empty());
}

pub async fn expired_lease(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.publish(&application).await;
    let job = world.claim_one(worker(1)).await;
    world.pass(LEASE - Duration::from_micros(1));
    world.store.heartbeat(worker(1), world.now()).await.unwrap();
    assert_eq!(recover(&world).await, 0);
    world.pass(Duration::from_micros(1));
    assert_eq!(recover(&world).await, 1);
    assert_eq!(world.claim_one(worker(1)).await.delivery.attempt, 2);
    assert_eq!(world.deliver(&job).await.stale.len(), 1);
}

pub async fn f058_due_after_recovery(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    for _ in 0..30 {
        world.publish(&application).await;
    }
    // Retries at mixed times, some in flight when their worker dies, workers that come and go.
    let (mut now, mut taken, mut delivered) = (1, 0, 0);
    while delivered < 30 {
        let mut request = world.request(worker(now));
        (request.lane_max, request.deliveries_max) = (8, 8);
        let claimed = world.store.claim(request).await.unwrap();
        for job in jobs(claimed) {
            taken += 1;
            match taken % 4 {
                0 => {}
                1 if job.delivery.attempt < 3 => {
                    let at = world.now().after(Duration::from_secs(7));
                    world.record(&job, status(429), Verdict::RetryAt(at)).await;
                }
                _ => {
                    world.deliver(&job).await;
                    delivered += 1;
                }
            }
        }
        world.pass_secs(15);
        now = now % 4 + 1;
        recover(&world).await;
        let status = world.store.status(world.now()).await.unwrap();
        let open = status.pending + status.awaiting_retry + status.in_flight;
        assert_eq!(open + delivered, 30, "none is lost: {status:?}");
        assert!(world.now().since(application.created_at) < Duration::from_secs(3_600));
    }
}

pub async fn f070_recovery_after_a_record(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    for _ in 0..2 {
        world.publish(&application).await;
    }
    let jobs = world.claim(worker(1)).await;
    world.pass_secs(60);
    world.deliver(&jobs[0]).await;
    assert_eq!(recover(&world).await, 1, "only what is still under lease comes back");
    assert_eq!(world.state(jobs[0].delivery.key).await, DeliveryState::Delivered);
    assert_eq!(world.claim_one(worker(2)).await.delivery.key, jobs[1].delivery.key);
}

pub async fn retired_worker(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    for _ in 0..3 {
        world.publish(&application).await;
    }
    world.store.heartbeat(worker(1), world.now()).await.unwrap();
    assert_eq!(world.store.status(world.now()).await.unwrap().workers, 1);
    assert_eq!(world.claim(worker(1)).await.len(), 3);
    world.store.retire(worker(1), world.now()).await.unwrap();
    assert_eq!(world.store.status(world.now()).await.unwrap().workers, 0);
    let jobs = world.claim(worker(2)).await;
    assert_eq!(jobs.len(), 3);
    assert!(jobs.iter().all(|job| job.delivery.attempt == 1), "nothing was attempted");
}

pub async fn f066_nothing_while_disabled(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    let mut messages = Vec::new();
    for _ in 0..3 {
        messages.push(world.publish(&application).await);
    }
    for job in world.claim(worker(1)).await {
        let at = world.now().after(Duration::from_secs(60));
        world.record(&job, status(429), Verdict::RetryAt(at)).await;
    }
    world.disable(&endpoint).await;
    for _ in 0..5 {
        messages.push(world.publish(&application).await);
    }
    world.steps().await;
    world.pass_secs(120);
    let claimed = world.claimed(worker(1)).await;
    assert!(claimed.lanes.is_empty());
    assert_eq!(claimed.next_due_at, None, "nobody is woken for it");
    for message in &messages {
        assert_eq!(world.state(key(&endpoint, *message)).await, DeliveryState::Held);
    }
    world.enable(&endpoint).await;
    world.steps().await;
    assert!(world.claim(worker(1)).await.is_empty(), "nothing is sent by surprise");
    world.store.start_task(world.replay(&endpoint, &[DeliveryState::Held])).await.unwrap();
    world.steps().await;
    let jobs = world.claim(worker(1)).await;
    assert_eq!(jobs.len(), 8);
    for job in &jobs {
        world.deliver(job).await;
    }
    for message in &messages {
        assert_eq!(world.state(key(&endpoint, *message)).await, DeliveryState::Delivered);
    }
}

pub async fn hold_in_steps(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    for _ in 0..2_100 {
        world.publish(&application).await;
    }
    world.disable(&endpoint).await;
    assert!(world.claim(worker(1)).await.is_empty(), "at once, however much waits");
    assert_eq!(world.steps().await, 3);
    let status = world.store.status(world.now()).await.unwrap();
    assert_eq!((status.held, status.pending), (2_100, 0));
    assert_eq!(status.oldest_undelivered, None);
}

pub async fn enabling_finishes_the_hold(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    let held = world.publish(&application).await;
    world.disable(&endpoint).await;
    world.enable(&endpoint).await;
    assert_eq!(world.state(key(&endpoint, held)).await, DeliveryState::Held);
    let message = world.publish(&application).await;
    assert_eq!(world.claim_one(worker(1)).await.message.id, message);
    assert_eq!(world.store.step(world.now()).await.unwrap(), Step::Idle);
}

pub async fn in_flight_while_disabled(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    for _ in 0..4 {
        world.publish(&application).await;
    }
    let jobs = world.claim(worker(1)).await;
    world.disable(&endpoint).await;
    world.steps().await;
    world.deliver(&jobs[0]).await;
    world.retry(&jobs[1], 0).await;
    world.store.give_back(vec![jobs[2].delivery], world.now()).await.unwrap();
    world.pass_secs(60);
    recover(&world).await;
    let states =
        [DeliveryState::Delivered, DeliveryState::Held, DeliveryState::Held, DeliveryState::Held];
    for (job, expected) in jobs.iter().zip(states) {
        assert_eq!(world.state(job.delivery.key).await, expected);
    }
    assert!(world.claim(worker(1)).await.is_empty());
}

pub async fn f073_deleted_endpoint(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let deleted = world.endpoint(&application).await;
    let kept = world.endpoint(&application).await;
    let mut messages = Vec::new();
    for _ in 0..100 {
        messages.push(world.publish(&application).await);
    }
    world.store.delete_endpoint(deleted.id, world.now()).await.unwrap();
    let jobs = world.claim(worker(1)).await;
    assert_eq!(jobs.len(), 100);
    assert!(jobs.iter().all(|job| job.endpoint.id == kept.id));
    world.steps().await;
    for message in messages {
        let delivery = world.delivery(key(&deleted, message)).await;
        assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Cancelled, 0));
        assert_eq!(delivery.cause.as_deref(), Some("endpoint deleted"));
    }
    assert_eq!(world.claimed(worker(1)).await.next_due_at, None);
}

pub async fn in_flight_while_deleted(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    for _ in 0..4 {
        world.publish(&application).await;
    }
    let jobs = world.claim(worker(1)).await;
    world.store.delete_endpoint(endpoint.id, world.now()).await.unwrap();
    world.steps().await;
    world.deliver(&jobs[0]).await;
    world.retry(&jobs[1], 60).await;
    world.store.give_back(vec![jobs[2].delivery], world.now()).await.unwrap();
    world.pass_secs(60);
    recover(&world).await;
    world.steps().await;
    let states = [
        DeliveryState::Delivered,
        DeliveryState::Cancelled,
        DeliveryState::Cancelled,
        DeliveryState::Cancelled,
    ];
    for (job, expected) in jobs.iter().zip(states) {
        assert_eq!(world.state(job.delivery.key).await, expected);
    }
}

pub async fn deleted_application(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let (deleted, kept) = (world.application().await, world.application().await);
    let endpoints = [world.endpoint(&deleted).await, world.endpoint(&deleted).await];
    let message = world.publish(&deleted).await;
    world.endpoint(&kept).await;
    world.publish(&kept).await;
    world.store.delete_application(deleted.id, world.now()).await.unwrap();
    assert_eq!(world.claim_one(worker(1)).await.delivery.application_id, kept.id);
    world.steps().await;
    for endpoint in &endpoints {
        assert_eq!(world.state(key(endpoint, message)).await, DeliveryState::Cancelled);
        assert_eq!(world.store.endpoint(deleted.id, &endpoint.id.to_string()).await.unwrap(), None);
    }
}

pub async fn payloads_expire(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let mut ids = Vec::new();
    for days in [1, 2] {
        let mut message = world.message(&application);
        message.expires_at = world.now().after(Duration::from_secs(days * 86_400));
        ids.push(world.publish_message(message).await);
    }
    world.pass_secs(86_400);
    assert_eq!(world.store.prune(world.now()).await.unwrap(), 1);
    assert_eq!(world.store.prune(world.now()).await.unwrap(), 0);
    let mut payloads = Vec::new();
    for id in ids {
        let found = world.store.message(application.id, &id.to_string()).await.unwrap();
        payloads.push(found.unwrap().payload.is_some());
    }
    assert_eq!(payloads, [false, true]);
}

/// What is old goes with all that belongs to it, but for what is open or can still be sent. Weeks
/// lie between the messages, because a back-end may forget a week at once.
pub async fn history_is_forgotten(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    let begun = world.now();
    let mut ids = Vec::new();
    for kept_days in [1, 1, 50] {
        let mut message = world.message(&application);
        message.expires_at = world.now().after(Duration::from_secs(kept_days * 86_400));
        ids.push(world.publish_message(message).await);
        let job = world.claim_one(worker(1)).await;
        if ids.len() == 2 {
            world.retry(&job, 100 * 86_400).await;
        } else {
            world.deliver(&job).await;
        }
        world.pass_secs(20 * 86_400);
    }
    world.store.prune(world.now()).await.unwrap();
    assert_eq!(world.store.forget(begun).await.unwrap(), 0);
    let whole = Listed::read(&world, &application, &endpoint).await;
    assert_eq!((&whole.messages, &whole.attempts), (&ids, &ids));
    assert_eq!(world.store.forget(world.now()).await.unwrap(), 1);
    let left = Listed::read(&world, &application, &endpoint).await;
    assert_eq!((left.messages, left.of_endpoint), (ids[1..].to_vec(), ids[1..].to_vec()));
    assert_eq!(left.attempts, ids[1..]);
    let gone = world.store.message(application.id, &ids[0].to_string()).await.unwrap();
    assert_eq!(gone, None);
    assert_eq!(world.store.delivery(key(&endpoint, ids[0])).await.unwrap(), None);
    // Nothing that comes later is missed in a list.
    ids.push(world.publish(&application).await);
    world.deliver(&world.claim_one(worker(1)).await).await;
    let left = Listed::read(&world, &application, &endpoint).await;
    assert_eq!((left.messages, left.of_endpoint), (ids[1..].to_vec(), ids[1..].to_vec()));
    assert_eq!(left.attempts, ids[1..]);
}

/// A history that is forgotten whole begins anew.
pub async fn everything_is_forgotten(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    for round in 0..2 {
        let mut ids = Vec::new();
        for number in 0..3 {
            let mut message = world.message(&application);
            message.expires_at = world.now().after(Duration::from_secs(86_400));
            // Free again once the message that had it is forgotten.
            message.event_id = Some(EventId::new(&format!("event-{number}")).unwrap());
            ids.push(world.publish_message(message).await);
            world.deliver(&world.claim_one(worker(1)).await).await;
        }
        let listed = Listed::read(&world, &application, &endpoint).await;
        assert_eq!((&listed.messages, &listed.attempts), (&ids, &ids), "round {round}");
        world.pass_secs(30 * 86_400);
        world.store.prune(world.now()).await.unwrap();
        assert_eq!(world.store.forget(world.now()).await.unwrap(), 3);
    }
}

/// Which messages the lists show, oldest first.
struct Listed {
    messages: Vec<MessageId>,
    of_endpoint: Vec<MessageId>,
    attempts: Vec<MessageId>,
}

impl Listed {
    async fn read(world: &World, application: &Application, endpoint: &Endpoint) -> Self {
        let filter = MessageFilter::default;
        let messages = world.store.messages(application.id, filter(), page(100));
        let of_endpoint = world.store.messages_of_endpoint(endpoint.id, filter(), None, page(100));
        let attempts =
            world.store.attempts_of_endpoint(endpoint.id, AttemptFilter::default(), page(100));
        Self {
            messages: messages.await.unwrap().items.iter().rev().map(|it| it.id).collect(),
            of_endpoint: of_endpoint
                .await
                .unwrap()
                .items
                .iter()
                .rev()
                .map(|(it, _)| it.id)
                .collect(),
            attempts: attempts
                .await
                .unwrap()
                .items
                .iter()
                .rev()
                .map(|it| it.key.message_id)
                .collect(),
        }
    }
}

pub async fn requests_expire(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let mut acceptance = world.acceptance(world.message(&application)).await;
    acceptance.idempotency = Some(idempotency(1, 1));
    world.store.accept(acceptance).await.unwrap();
    world.pass_secs(86_399);
    assert_eq!(world.store.prune(world.now()).await.unwrap(), 0);
    world.pass_secs(1);
    assert_eq!(world.store.prune(world.now()).await.unwrap(), 1);
}

pub async fn sketches_expire(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    let start = world.now();
    let mut sketch = Sketch::default();
    sketch.add(Duration::from_millis(5));
    let scopes = [Scope::EndpointLatency(endpoint.id), Scope::DeliveryTime];
    let sketches =
        scopes.map(|scope| WindowSketch { scope, start, sketch: sketch.to_bytes(), p95_ms: 0 });
    let batch = RecordBatch {
        worker_id: worker(1),
        now: start,
        rules: world.rules(),
        records: Vec::new(),
        sketches: sketches.to_vec(),
    };
    world.store.record(batch).await.unwrap();
    world.pass_secs(25 * 3_600);
    assert_eq!(world.store.prune(world.now()).await.unwrap(), 0);
    world.pass_secs(1);
    assert_eq!(world.store.prune(world.now()).await.unwrap(), 2);
}

pub async fn everything_survives_a_restart(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    let mut keys = Vec::new();
    for _ in 0..4 {
        keys.push(key(&endpoint, world.publish(&application).await));
    }
    let jobs = world.claim(worker(1)).await;
    world.deliver(&jobs[0]).await;
    world.kill(&jobs[1]).await;
    world.retry(&jobs[2], 60).await;
    world.store.give_back(vec![jobs[3].delivery], world.now()).await.unwrap();
    let mut before = Vec::new();
    for key in &keys {
        before.push(world.delivery(*key).await);
    }
    let status = world.store.status(world.now()).await.unwrap();
    world.store.close().await.unwrap();
    let again = world.another(ground).await;
    for (key, before) in keys.iter().zip(before) {
        assert_eq!(again.delivery(*key).await, before);
    }
    let mut after = again.store.status(again.now()).await.unwrap();
    after.workers = status.workers;
    assert_eq!(after, status);
    assert_eq!(again.claim_one(worker(2)).await.delivery.key, keys[3]);
}

pub async fn closed_store(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let acceptance = world.acceptance(world.message(&application)).await;
    world.store.check().await.unwrap();
    world.store.close().await.unwrap();
    let error = world.store.accept(acceptance).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    let error = world.store.status(world.now()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert_eq!(world.store.check().await.unwrap_err().kind(), Kind::Unavailable);
}
