//! Accepting, claiming, recording, giving back.

use super::Ground;
use super::world::*;
use crate::Kind;
use crate::outbox::{Accepted, RecordBatch, Start};
use bytes::Bytes;
use posthaste_core::delivery::{Class, DeliveryState, Verdict};
use posthaste_core::event::{Channel, EventId};
use posthaste_core::limits::{PAYLOAD_BYTES_MAX, RECORD_BATCH_MAX};
use posthaste_core::outcome::Response;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

pub async fn accepted_is_claimed(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    let message = world.publish(&application).await;
    assert_eq!(world.state(key(&endpoint, message)).await, DeliveryState::Pending);
    let job = world.claim_one(worker(1)).await;
    assert_eq!(job.delivery.key, key(&endpoint, message));
    assert_eq!(*job.endpoint, endpoint);
    assert_eq!(job.message.payload.as_deref(), Some(&b"{\"total\":12.50}"[..]));
    assert_eq!((job.delivery.attempt, job.delivery.plan_attempt), (1, 1));
    assert_eq!(job.delivery.class, Class::First);
    assert_eq!(world.state(job.delivery.key).await, DeliveryState::InFlight);
    assert!(world.claim(worker(2)).await.is_empty());
}

pub async fn accept_without_deliveries(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let message = world.publish(&application).await;
    let found = world.store.message(application.id, &message.to_string()).await.unwrap();
    assert_eq!(found.map(|found| found.id), Some(message));
    assert!(world.claim(worker(1)).await.is_empty());
}

pub async fn leased_from_the_start(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    let job = world.publish_leased(&application, worker(1)).await.remove(0);
    assert_eq!(world.state(job.delivery.key).await, DeliveryState::InFlight);
    assert!(world.claim(worker(2)).await.is_empty());
    world.deliver(&job).await;
    let delivery = world.delivery(job.delivery.key).await;
    assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Delivered, 1));
}

pub async fn held_from_the_start(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    world.disable(&endpoint).await;
    let message = world.publish(&application).await;
    assert_eq!(world.state(key(&endpoint, message)).await, DeliveryState::Held);
    let claimed = world.claimed(worker(1)).await;
    assert!(claimed.lanes.is_empty());
    assert_eq!(claimed.next_due_at, None);
}

pub async fn old_routes_are_refused(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let old = world.acceptance(world.message(&application)).await;
    let endpoint = world.endpoint(&application).await;
    let message = old.message.id;
    assert_eq!(world.store.accept(old).await.unwrap(), Accepted::RoutesChanged);
    assert_eq!(world.store.message(application.id, &message.to_string()).await.unwrap(), None);
    let message = world.publish(&application).await;
    assert_eq!(world.state(key(&endpoint, message)).await, DeliveryState::Pending);
}

pub async fn no_application(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let acceptance = world.acceptance(world.message(&application)).await;
    world.store.delete_application(application.id, world.now()).await.unwrap();
    assert_eq!(world.store.accept(acceptance).await.unwrap(), Accepted::NoApplication);
}

pub async fn event_id_is_taken_once(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    let with_id = || {
        let mut message = world.message(&application);
        message.event_id = Some(EventId::new("order-1").unwrap());
        message
    };
    let first = world.publish_message(with_id()).await;
    let again = world.acceptance(with_id()).await;
    assert_eq!(world.store.accept(again).await.unwrap(), Accepted::EventIdTaken(first));
    assert_eq!(world.claim(worker(1)).await.len(), 1);
}

pub async fn event_id_of_another_application(ground: &dyn Ground) {
    let world = World::new(ground).await;
    for _ in 0..2 {
        let application = world.application().await;
        let mut message = world.message(&application);
        message.event_id = Some(EventId::new("order-1").unwrap());
        world.publish_message(message).await;
    }
}

pub async fn f048_same_key_same_message(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoints = [world.endpoint(&application).await, world.endpoint(&application).await];
    let mut first = world.acceptance(world.message(&application)).await;
    first.idempotency = Some(idempotency(1, 1));
    let id = first.message.id;
    assert_eq!(world.store.accept(first).await.unwrap(), Accepted::Committed);
    let mut second = world.acceptance(world.message(&application)).await;
    second.idempotency = Some(idempotency(1, 1));
    assert_eq!(world.store.accept(second).await.unwrap(), Accepted::Repeated(id));
    let claimed: BTreeSet<_> =
        world.claim(worker(1)).await.iter().map(|job| job.delivery.key).collect();
    assert_eq!(claimed, endpoints.iter().map(|endpoint| key(endpoint, id)).collect());
}

pub async fn f048_same_key_other_request(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    for (request, expected) in [(1, Accepted::Committed), (2, Accepted::KeyReused)] {
        let mut acceptance = world.acceptance(world.message(&application)).await;
        acceptance.idempotency = Some(idempotency(1, request));
        assert_eq!(world.store.accept(acceptance).await.unwrap(), expected);
    }
}

pub async fn f048_same_key_at_once(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    let mut calls = Vec::new();
    for _ in 0..20 {
        let mut acceptance = world.acceptance(world.message(&application)).await;
        acceptance.idempotency = Some(idempotency(1, 1));
        let store = Arc::clone(&world.store);
        calls.push(tokio::spawn(async move {
            (acceptance.message.id, store.accept(acceptance).await.unwrap())
        }));
    }
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await.unwrap());
    }
    let committed: Vec<_> =
        answers.iter().filter(|(_, answer)| *answer == Accepted::Committed).collect();
    assert_eq!(committed.len(), 1);
    let id = committed[0].0;
    assert_eq!(answers.iter().filter(|(_, answer)| *answer == Accepted::Repeated(id)).count(), 19);
    assert_eq!(world.claim(worker(1)).await.len(), 1);
}

pub async fn idempotency_key_expires(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    for request in [1, 2] {
        let mut acceptance = world.acceptance(world.message(&application)).await;
        acceptance.idempotency = Some(idempotency(1, request));
        assert_eq!(world.store.accept(acceptance).await.unwrap(), Accepted::Committed);
        world.pass_secs(25 * 3_600);
    }
}

pub async fn same_event_id_at_once(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let mut calls = Vec::new();
    for _ in 0..20 {
        let mut message = world.message(&application);
        message.event_id = Some(EventId::new("order-1").unwrap());
        let acceptance = world.acceptance(message).await;
        let store = Arc::clone(&world.store);
        calls.push(tokio::spawn(async move { store.accept(acceptance).await.unwrap() }));
    }
    let mut committed = 0;
    for call in calls {
        match call.await.unwrap() {
            Accepted::Committed => committed += 1,
            Accepted::EventIdTaken(_) => {}
            other => panic!("unexpected answer {other:?}"),
        }
    }
    assert_eq!(committed, 1);
}

/// Publishes a payload, has its first attempt fail, and compares what both attempts get.
async fn payload_comes_back(ground: &dyn Ground, payload: &[u8]) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    let mut message = world.message(&application);
    message.payload = Some(Bytes::copy_from_slice(payload));
    world.publish_message(message).await;
    let first = world.claim_one(worker(1)).await;
    assert!(first.message.payload.as_deref() == Some(payload), "the payload changed");
    world.retry(&first, 1).await;
    world.pass_secs(1);
    let second = world.claim_one(worker(2)).await;
    assert!(second.message.payload.as_deref() == Some(payload), "the payload changed");
}

pub async fn f005_bytes_stay_as_they_are(ground: &dyn Ground) {
    let payload = br#"{"z":1,"a":2,"m":{"y":1.0,"b":9007199254740993},"a2":1e2,"dup":1,"dup":2}"#;
    payload_comes_back(ground, payload).await;
}

pub async fn f032_nul_bytes(ground: &dyn Ground) {
    payload_comes_back(ground, b"{\"diff\":\"a\\u0000b\",\"lit\":\"\\\\u0000\"}\0\xFF\xFE").await;
}

pub async fn f101_largest_payload(ground: &dyn Ground) {
    let payload: Vec<u8> = (0..PAYLOAD_BYTES_MAX).map(|index| (index % 251) as u8).collect();
    payload_comes_back(ground, &payload).await;
}

pub async fn delivered_is_done(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.publish(&application).await;
    let job = world.claim_one(worker(1)).await;
    let recorded = world.deliver(&job).await;
    assert!(recorded.stale.is_empty());
    assert_eq!(recorded.lanes.len(), 1);
    let delivery = world.delivery(job.delivery.key).await;
    assert_eq!(delivery.state, DeliveryState::Delivered);
    assert_eq!(delivery.ended_at, Some(world.now()));
    assert_eq!((delivery.last_status, delivery.cause), (Some(200), None));
    world.pass_secs(3_600);
    assert!(world.claim(worker(1)).await.is_empty());
}

pub async fn retry_waits_for_its_time(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.publish(&application).await;
    let job = world.claim_one(worker(1)).await;
    world.retry(&job, 10).await;
    let delivery = world.delivery(job.delivery.key).await;
    assert_eq!(delivery.state, DeliveryState::AwaitingRetry);
    assert_eq!(delivery.next_attempt_at, Some(world.now().after(Duration::from_secs(10))));
    assert_eq!(delivery.last_status, Some(500));
    world.pass(Duration::from_micros(9_999_999));
    assert!(world.claim(worker(1)).await.is_empty());
    world.pass(Duration::from_micros(1));
    assert_eq!(world.claim_one(worker(1)).await.delivery.attempt, 2);
}

pub async fn dead_letter_has_its_cause(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.publish(&application).await;
    let job = world.claim_one(worker(1)).await;
    world.kill(&job).await;
    let delivery = world.delivery(job.delivery.key).await;
    assert_eq!(delivery.state, DeliveryState::DeadLetter);
    assert_eq!(delivery.cause.as_deref(), Some("final: status_422"));
    assert_eq!(delivery.last_status, Some(422));
    assert!(world.claim(worker(1)).await.is_empty());
}

pub async fn f070_late_record_changes_nothing(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.publish(&application).await;
    let late = world.claim_one(worker(1)).await;
    world.pass_secs(31);
    world.store.recover(world.now(), world.now().before(LEASE)).await.unwrap();
    let job = world.claim_one(worker(2)).await;
    assert_eq!((job.delivery.attempt, job.delivery.lease.number), (2, 2));
    // The late one must not end what the second worker has in flight, whatever it says.
    for verdict in [Verdict::Delivered, Verdict::RetryAt(world.now())] {
        let recorded = world.record(&late, status(500), verdict).await;
        assert_eq!(recorded.stale, [late.delivery.key]);
        assert_eq!(world.state(job.delivery.key).await, DeliveryState::InFlight);
        assert_eq!(recorded.lanes[0].1.breaker.consecutive_failures, 0);
    }
    world.deliver(&job).await;
    let recorded = world.kill(&late).await;
    assert_eq!(recorded.stale.len(), 1);
    assert_eq!(world.state(job.delivery.key).await, DeliveryState::Delivered);
    let message = job.message.id;
    let attempts = world
        .store
        .attempts_of_message(application.id, message, Default::default(), page(50))
        .await
        .unwrap();
    let stale = attempts.items.iter().filter(|attempt| attempt.verdict == "stale").count();
    assert_eq!((attempts.items.len(), stale), (4, 3), "late attempts are kept");
}

pub async fn f038_any_answer_is_kept(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    let bodies: [(&[u8], bool); 4] =
        [(b"", false), (b"a\0b", false), (b"\xFF\xFE\x80", false), (&[b'x'; 16 * 1024], true)];
    for (body, cut) in bodies {
        world.publish(&application).await;
        let job = world.claim_one(worker(1)).await;
        let response = Response {
            status: 200,
            retry_after: None,
            body: Bytes::from(body.to_vec()),
            body_cut: cut,
        };
        let outcome = respond(response);
        let record = world.attempt(&job, outcome.clone(), Verdict::Delivered);
        let id = record.attempt_id;
        world.record_all(vec![(record, Arc::clone(&job.endpoint))]).await;
        assert_eq!(world.state(job.delivery.key).await, DeliveryState::Delivered);
        let kept = world.store.attempt(application.id, job.message.id, id).await.unwrap();
        assert_eq!(kept.unwrap().outcome, outcome);
    }
}

pub async fn too_many_records(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.publish(&application).await;
    let job = world.claim_one(worker(1)).await;
    let record = world.attempt(&job, status(200), Verdict::Delivered);
    let batch = RecordBatch {
        worker_id: worker(1),
        now: world.now(),
        rules: world.rules(),
        records: vec![(record, Arc::clone(&job.endpoint)); RECORD_BATCH_MAX + 1],
        sketches: Vec::new(),
    };
    assert_eq!(world.store.record(batch).await.unwrap_err().kind(), Kind::Limit);
    assert_eq!(world.state(job.delivery.key).await, DeliveryState::InFlight);
}

pub async fn message_comes_back_whole(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    let mut message = world.message(&application);
    message.channels = vec![Channel::new("eu").unwrap(), Channel::new("vip").unwrap()];
    message.event_id = Some(EventId::new("e-1").unwrap());
    let mut acceptance = world.acceptance(message.clone()).await;
    acceptance.deliveries[0].start = Start::Due;
    assert_eq!(world.store.accept(acceptance).await.unwrap(), Accepted::Committed);
    assert_eq!(*world.claim_one(worker(1)).await.message, message);
}
