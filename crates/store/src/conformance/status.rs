//! How it stands: health over windows of time, the one row, notices.

use super::Ground;
use super::world::*;
use crate::outbox::{RecordBatch, Scope, WindowSketch};
use posthaste_core::delivery::{Cause, Verdict};
use posthaste_core::latency::Sketch;
use posthaste_core::time::Timestamp;
use std::time::Duration;

fn sketch_of(millis: &[u64]) -> Sketch {
    let mut sketch = Sketch::default();
    for millis in millis {
        sketch.add(Duration::from_millis(*millis));
    }
    sketch
}

async fn write_sketch(world: &World, by: u8, scope: Scope, start: Timestamp, millis: &[u64]) {
    let batch = RecordBatch {
        worker_id: worker(by),
        now: world.now(),
        rules: world.rules(),
        records: Vec::new(),
        sketches: vec![WindowSketch {
            scope,
            start,
            sketch: sketch_of(millis).to_bytes(),
            p95_ms: 70,
        }],
    };
    world.store.record(batch).await.unwrap();
}

pub async fn windows_are_merged(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    let scope = Scope::EndpointLatency(endpoint.id);
    let old = world.now();
    write_sketch(&world, 1, scope, old, &[9; 50]).await;
    let first = world.pass_secs(3 * 3_600);
    write_sketch(&world, 1, scope, first, &[10]).await;
    write_sketch(&world, 1, scope, first, &[10, 20]).await;
    write_sketch(&world, 2, scope, first, &[30]).await;
    let second = world.pass_secs(3_600);
    write_sketch(&world, 2, scope, second, &[40]).await;
    world.pass_secs(21 * 3_600);
    let health = world.store.health(endpoint.id, world.now()).await.unwrap().unwrap();
    let windows: Vec<_> =
        health.windows.iter().map(|(start, sketch)| (*start, sketch.count())).collect();
    // What is older than a day is left out; a worker's sketch replaces its earlier self.
    assert_eq!(windows, [(first, 3), (second, 1)]);
    assert_eq!(health.percentiles().unwrap().count, 4);
    assert_eq!(health.health.p95_ms, 70);
}

pub async fn status_tells_how_it_stands(ground: &dyn Ground) {
    let world = World::new(ground).await;
    assert_eq!(world.store.status(world.now()).await.unwrap(), Default::default());
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    let mut messages = Vec::new();
    for _ in 0..6 {
        messages.push(world.publish(&application).await);
        world.pass_secs(1);
    }
    world.store.heartbeat(worker(1), world.now()).await.unwrap();
    let mut request = world.request(worker(1));
    request.lane_max = 5;
    let jobs = jobs(world.store.claim(request).await.unwrap());
    let paused = world.application().await;
    let disabled = world.endpoint(&paused).await;
    world.disable(&disabled).await;
    world.publish(&paused).await;
    world.deliver(&jobs[0]).await;
    world.kill(&jobs[1]).await;
    world.retry(&jobs[2], 60).await;
    world.retry(&jobs[3], 60).await;
    let status = world.store.status(world.now()).await.unwrap();
    assert_eq!((status.pending, status.awaiting_retry, status.in_flight), (1, 2, 1));
    assert_eq!((status.dead_letter, status.held), (1, 1));
    assert_eq!((status.delivered_last_hour, status.failed_last_hour), (1, 1));
    assert_eq!(status.failed_attempts_last_hour, 3);
    let (oldest, accepted_at) = status.oldest_undelivered.unwrap();
    assert_eq!(oldest, key(&endpoint, messages[2]));
    assert_eq!(accepted_at, jobs[2].message.created_at);
    assert_eq!((status.breakers_open, status.endpoints_disabled, status.workers), (0, 1, 1));
    // The one that was not claimed; the retries are due later.
    assert_eq!(status.oldest_due_at, Some(messages[5].timestamp()));
    let last = world.claim_one(worker(1)).await;
    world.deliver(&last).await;
    let status = world.store.status(world.now()).await.unwrap();
    assert_eq!(status.oldest_due_at, None);
    let due_at = world.now().after(Duration::from_secs(60));
    world.pass_secs(61);
    let status = world.store.status(world.now()).await.unwrap();
    assert_eq!(status.oldest_due_at, Some(due_at));
    world.pass_secs(3_700);
    let status = world.store.status(world.now()).await.unwrap();
    assert_eq!((status.delivered_last_hour, status.failed_last_hour, status.workers), (0, 0, 0));
    assert_eq!(status.dead_letter, 1);
}

pub async fn failures_count_when_given_up(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.publish(&application).await;
    world.retry(&world.claim_one(worker(1)).await, 5 * 3_600).await;
    world.pass_secs(5 * 3_600);
    let job = world.claim_one(worker(1)).await;
    let cause = Cause::Exhausted(status(500).class());
    world.record(&job, status(500), Verdict::Dead(cause)).await;
    let status = world.store.status(world.now()).await.unwrap();
    // Accepted hours ago, but given up now.
    assert_eq!((status.failed_last_hour, status.failed_attempts_last_hour), (1, 1));
}

pub async fn delivery_times(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    for millis in [100, 300] {
        world.publish(&application).await;
        let job = world.claim_one(worker(1)).await;
        world.pass(Duration::from_millis(millis));
        world.deliver(&job).await;
    }
    let start = Timestamp::from_secs(world.now().as_secs() / 60 * 60);
    write_sketch(&world, 1, Scope::DeliveryTime, start, &[100]).await;
    write_sketch(&world, 2, Scope::DeliveryTime, start, &[300]).await;
    let status = world.store.status(world.now()).await.unwrap();
    assert_eq!(status.delivery_time_average, Some(Duration::from_millis(200)));
    assert_eq!(status.delivery_time.unwrap().count, 2);
    world.pass_secs(3_700);
    let status = world.store.status(world.now()).await.unwrap();
    assert_eq!((status.delivery_time, status.delivery_time_average), (None, None));
}

pub async fn notices_newest_first(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let mut applications = Vec::new();
    for _ in 0..3 {
        let application = world.application().await;
        world.endpoint(&application).await;
        world.publish(&application).await;
        let job = world.claim_one(worker(1)).await;
        world.record(&job, status(410), Verdict::Dead(Cause::Gone)).await;
        world.pass_secs(1);
        applications.insert(0, application.id);
    }
    let all = world.store.notices(None, 10).await.unwrap();
    let of: Vec<_> = all.iter().map(|notice| notice.application_id).collect();
    assert_eq!(of, applications);
    assert_eq!(world.store.notices(None, 2).await.unwrap(), all[..2]);
    let one = world.store.notices(Some(applications[1]), 10).await.unwrap();
    assert_eq!(one, all[1..2]);
}
