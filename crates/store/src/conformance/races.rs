//! Many at once, and commits that fail.

use super::Ground;
use super::world::*;
use crate::history::{DeadLetterFilter, MessageFilter};
use crate::outbox::Accepted;
use crate::{Kind, Store};
use posthaste_core::delivery::{Cause, DeliveryKey, DeliveryState, Verdict};
use posthaste_core::endpoint::{Application, DisabledReason, Endpoint};
use posthaste_core::event::EventId;
use posthaste_core::id::WorkerId;
use posthaste_core::time::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

const PUBLISHERS: usize = 16;
const WORKERS: u8 = 8;

/// Publishes `count` messages from many tasks, while many workers, on the handles in turn, claim
/// and record, and others look on. Gives how often each delivery was claimed.
async fn rush(worlds: Vec<Arc<World>>, application: Application, count: usize) -> Counts {
    let mut tasks = JoinSet::new();
    let application = Arc::new(application);
    for publisher in 0..PUBLISHERS {
        let world = Arc::clone(&worlds[publisher % worlds.len()]);
        let application = Arc::clone(&application);
        tasks.spawn(async move {
            for _ in 0..count / PUBLISHERS {
                world.publish(&application).await;
            }
            Vec::new()
        });
    }
    let delivered = Arc::new(AtomicUsize::new(0));
    for number in 0..WORKERS {
        let world = Arc::clone(&worlds[usize::from(number) % worlds.len()]);
        let delivered = Arc::clone(&delivered);
        tasks.spawn(async move {
            let mut keys = Vec::new();
            while delivered.load(Ordering::SeqCst) < count {
                let jobs = world.claim(worker(number + 1)).await;
                let records = jobs.iter().map(|job| {
                    let record = world.attempt(job, status(200), Verdict::Delivered);
                    (record, Arc::clone(&job.endpoint))
                });
                let recorded = world.record_all(records.collect()).await;
                assert!(recorded.stale.is_empty());
                keys.extend(jobs.iter().map(|job| job.delivery.key));
                delivered.fetch_add(jobs.len(), Ordering::SeqCst);
            }
            keys
        });
    }
    for world in &worlds {
        let (world, delivered) = (Arc::clone(world), Arc::clone(&delivered));
        tasks.spawn(async move {
            while delivered.load(Ordering::SeqCst) < count {
                world.store.status(world.now()).await.unwrap();
                world.store.prune(world.now()).await.unwrap();
                world.store.step(world.now()).await.unwrap();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Vec::new()
        });
    }
    let mut counts = Counts::new();
    while let Some(keys) = tasks.join_next().await {
        for key in keys.unwrap() {
            *counts.entry(key).or_default() += 1;
        }
    }
    counts
}

type Counts = BTreeMap<DeliveryKey, usize>;

pub async fn f096_many_at_once(ground: &dyn Ground) {
    let world = Arc::new(World::new(ground).await);
    let application = world.application().await;
    world.endpoint(&application).await;
    let counts = rush(vec![Arc::clone(&world)], application, 8_000).await;
    assert_eq!(counts.len(), 8_000);
    assert!(counts.values().all(|count| *count == 1), "a delivery was claimed twice");
    let status = world.store.status(world.now()).await.unwrap();
    assert_eq!(status.delivered_last_hour, 8_000);
    assert_eq!(status.pending + status.in_flight, 0);
}

pub async fn f096_two_processes(ground: &dyn Ground) {
    let world = Arc::new(World::new(ground).await);
    let application = world.application().await;
    world.endpoint(&application).await;
    let other = Arc::new(world.another(ground).await);
    let counts = rush(vec![Arc::clone(&world), other], application, 3_200).await;
    assert_eq!(counts.len(), 3_200);
    assert!(counts.values().all(|count| *count == 1), "a delivery was claimed twice");
    assert_eq!(world.store.status(world.now()).await.unwrap().delivered_last_hour, 3_200);
}

pub async fn nothing_is_claimed_twice(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    for _ in 0..10 {
        world.endpoint(&application).await;
    }
    for _ in 0..50 {
        world.publish(&application).await;
    }
    let mut handles = Vec::new();
    for _ in 0..3 {
        handles.push(world.another(ground).await);
    }
    let mut keys = Vec::new();
    // Of what one of them is about to take, another may get nothing this time.
    loop {
        let (one, two, three) = tokio::join!(
            handles[0].claim(worker(1)),
            handles[1].claim(worker(2)),
            handles[2].claim(worker(3)),
        );
        let before = keys.len();
        keys.extend(one.iter().chain(&two).chain(&three).map(|job| job.delivery.key));
        if keys.len() == before {
            break;
        }
    }
    assert_eq!(keys.len(), 500);
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 500);
}

pub async fn failed_commit_promises_nothing(ground: &dyn Ground) {
    let (store, faults) = ground.open_faulty().await;
    let world = World::on(store);
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    world.publish(&application).await;
    let job = world.claim_one(worker(1)).await;
    let acceptance = world.acceptance(world.message(&application)).await;
    faults.fail_commits(1);
    let error = world.store.accept(acceptance.clone()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    let key = key(&endpoint, acceptance.message.id);
    assert_eq!(world.store.delivery(key).await.unwrap(), None);
    assert!(world.claim(worker(1)).await.is_empty());
    // The same again, when the disk has room again.
    assert_eq!(world.store.accept(acceptance).await.unwrap(), Accepted::Committed);
    faults.fail_commits(1);
    let mut changed = endpoint.clone();
    changed.description = "changed".to_owned();
    let error =
        world.store.update_endpoint(changed.clone(), endpoint.updated_at).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(*world.claim_one(worker(1)).await.endpoint == endpoint, "nothing changed");
    assert_eq!(world.state(job.delivery.key).await, DeliveryState::InFlight);
    world.deliver(&job).await;
    assert_eq!(world.state(job.delivery.key).await, DeliveryState::Delivered);
}

pub async fn conflict_stays_its_callers_own(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    let taken = EventId::new("taken").unwrap();
    let mut message = world.message(&application);
    message.event_id = Some(taken.clone());
    let first = message.id;
    world.publish_message(message).await;
    let mut tasks = JoinSet::new();
    for index in 0..60 {
        let mut message = world.message(&application);
        if index % 3 == 0 {
            message.event_id = Some(taken.clone());
        }
        if index % 3 == 1 {
            // The id of a message that is there: a defect of the caller.
            message.id = first;
        }
        let acceptance = world.acceptance(message).await;
        let store: Arc<dyn Store> = Arc::clone(&world.store);
        tasks.spawn(async move { (index % 3, store.accept(acceptance).await) });
    }
    while let Some(answer) = tasks.join_next().await {
        match answer.unwrap() {
            (0, answer) => assert_eq!(answer.unwrap(), Accepted::EventIdTaken(first)),
            (1, answer) => assert_eq!(answer.unwrap_err().kind(), Kind::Internal),
            (_, answer) => assert_eq!(answer.unwrap(), Accepted::Committed),
        }
    }
    assert_eq!(world.claim(worker(1)).await.len(), 21);
}

pub async fn record_against_recovery(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    let other = world.another(ground).await;
    for _ in 0..20 {
        world.publish(&application).await;
        let job = world.claim_one(worker(1)).await;
        world.pass_secs(60);
        let now = world.now();
        let recovery = other.store.recover(now, now.before(Duration::from_secs(12)));
        let (recorded, recovered) = tokio::join!(world.deliver(&job), recovery);
        // Whoever comes first wins; the other one changes nothing.
        let stale = recorded.stale.len() as u64;
        assert_eq!(recovered.unwrap(), stale);
        if stale == 1 {
            let again = world.claim_one(worker(2)).await;
            assert_eq!(again.delivery.key, job.delivery.key);
            world.deliver(&again).await;
        }
        assert_eq!(world.state(job.delivery.key).await, DeliveryState::Delivered);
        assert!(world.claim(worker(2)).await.is_empty());
    }
}

/// Three processes publish, deliver, give back, disable, enable, resend and recover at once, on the
/// same few endpoints. Nothing fails, and in the end everything is delivered or given up.
pub async fn f096_everything_at_once(ground: &dyn Ground) {
    const MESSAGES: usize = 200;
    let world = Arc::new(World::new(ground).await);
    let application = Arc::new(world.application().await);
    let mut endpoints = Vec::new();
    for _ in 0..4 {
        endpoints.push(world.endpoint(&application).await);
    }
    let endpoints = Arc::new(endpoints);
    let published = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    // Each made from the one before, so that their rows of ids lie apart.
    let mut last = Arc::clone(&world);
    for number in 1..=3 {
        let world = Arc::new(last.another(ground).await);
        last = Arc::clone(&world);
        for _ in 0..2 {
            let (world, application) = (Arc::clone(&world), Arc::clone(&application));
            let published = Arc::clone(&published);
            tasks.spawn(async move {
                for _ in 0..MESSAGES {
                    while !publish_anew(&world, &application).await {}
                    published.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let goes_on = {
            let published = Arc::clone(&published);
            move || published.load(Ordering::SeqCst) < 6 * MESSAGES
        };
        let (claiming, running) = (Arc::clone(&world), goes_on.clone());
        tasks.spawn(async move {
            while running() {
                deliver_some(&claiming, worker(number)).await;
            }
        });
        let endpoints = Arc::clone(&endpoints);
        tasks.spawn(async move {
            while goes_on() {
                meddle(&world, &endpoints[usize::from(number)], worker(number)).await;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    finish(&world, &endpoints).await;
    let status = world.store.status(world.now()).await.unwrap();
    assert_eq!(status.pending + status.in_flight + status.held + status.awaiting_retry, 0);
}

/// `false`: the routes changed meanwhile.
async fn publish_anew(world: &World, application: &Application) -> bool {
    let acceptance = world.acceptance(world.message(application)).await;
    match world.store.accept(acceptance).await.unwrap() {
        Accepted::Committed => true,
        Accepted::RoutesChanged => false,
        other => panic!("unexpected answer {other:?}"),
    }
}

/// Claims; every fifth is given back, every seventh is answered with 410, the others delivered.
async fn deliver_some(world: &World, worker: WorkerId) {
    let mut jobs = world.claim(worker).await;
    let mut back = Vec::new();
    let mut number = 0;
    jobs.retain(|job| {
        number += 1;
        if number % 5 == 0 {
            back.push(job.delivery);
        }
        number % 5 != 0
    });
    let records = jobs.iter().enumerate().map(|(index, job)| {
        let (outcome, verdict) = match index % 7 {
            6 => (status(410), Verdict::Dead(Cause::Final(status(410).class()))),
            _ => (status(200), Verdict::Delivered),
        };
        (world.attempt(job, outcome, verdict), Arc::clone(&job.endpoint))
    });
    let records = records.collect();
    let (recorded, given_back) =
        tokio::join!(world.record_all(records), world.store.give_back(back, world.now()),);
    assert!(recorded.stale.is_empty());
    given_back.unwrap();
}

/// What people and the janitor do beside it.
async fn meddle(world: &World, endpoint: &Endpoint, worker: WorkerId) {
    for disabled in [Some(DisabledReason::Manual), None] {
        let name = endpoint.id.to_string();
        let found = world.store.endpoint(endpoint.application_id, &name).await.unwrap();
        let mut changed = found.expect("the endpoint is there");
        let read_at = changed.updated_at;
        changed.disabled = disabled;
        changed.updated_at = read_at.after(Duration::from_micros(1));
        match world.store.update_endpoint(changed, read_at).await {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), Kind::Stale, "{error}"),
        }
        world.store.step(world.now()).await.unwrap();
    }
    world.store.heartbeat(worker, world.now()).await.unwrap();
    world.store.recover(world.now(), Timestamp::MIN).await.unwrap();
    let letters = world.store.dead_letters(DeadLetterFilter::default(), page(1)).await.unwrap();
    for letter in letters.items {
        world.store.resend(letter.key, world.now()).await.unwrap();
    }
    let states = [DeliveryState::Held];
    world.store.start_task(world.replay(endpoint, &states)).await.unwrap();
}

/// Enables, replays what is held, and delivers until nothing is left.
async fn finish(world: &World, endpoints: &[Endpoint]) {
    for endpoint in endpoints {
        world.change(endpoint, |endpoint| endpoint.disabled = None).await;
        world.steps().await;
        let task = world.replay(endpoint, &[DeliveryState::Held]);
        world.store.start_task(task).await.unwrap();
    }
    world.steps().await;
    loop {
        let jobs = world.claim(worker(9)).await;
        if jobs.is_empty() {
            return;
        }
        let records = jobs.iter().map(|job| {
            let record = world.attempt(job, status(200), Verdict::Delivered);
            (record, Arc::clone(&job.endpoint))
        });
        world.record_all(records.collect()).await;
    }
}

/// Whoever looks for a delivery while it is recorded finds it, open or ended. Others publish all
/// the time, so that there is always something new.
pub async fn what_ends_never_vanishes(ground: &dyn Ground) {
    const MESSAGES: usize = 200;
    let world = Arc::new(World::new(ground).await);
    let application = Arc::new(world.application().await);
    let endpoint = world.endpoint(&application).await;
    let others = Arc::clone(&world);
    let publisher = tokio::spawn(async move {
        let application = others.application().await;
        loop {
            others.publish(&application).await;
        }
    });
    for count in 1..=MESSAGES {
        let message = world.publish(&application).await;
        let job = world.claim_one(worker(1)).await;
        // One looker, because another would have the lists completed for it.
        let (looking, id) = (Arc::clone(&world), application.id);
        let looker = tokio::spawn(async move {
            let store = &looking.store;
            let mut state = DeliveryState::InFlight;
            while state != DeliveryState::Delivered {
                let found = store.deliveries_of_message(id, message, page(10)).await.unwrap();
                assert_eq!(found.items.len(), 1, "the message's delivery");
                state = found.items[0].state;
                let (all, limit) = (MessageFilter::default(), page(MESSAGES as u32 + 1));
                let found = store.messages_of_endpoint(endpoint.id, all, None, limit).await;
                assert_eq!(found.unwrap().items.len(), count, "the endpoint's messages");
            }
        });
        tokio::task::yield_now().await;
        world.deliver(&job).await;
        looker.await.unwrap();
    }
    publisher.abort();
}
