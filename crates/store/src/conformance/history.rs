//! What was and how it stands.

use super::Ground;
use super::world::*;
use crate::catalog::{Cursor, Order, Page};
use crate::history::{AttemptFilter, DeadLetterFilter, MessageFilter};
use bytes::Bytes;
use posthaste_core::delivery::{DeliveryKey, DeliveryState, Trigger, Verdict};
use posthaste_core::event::{Channel, EventId, EventTypeName};
use posthaste_core::id::{EndpointId, MessageId};
use posthaste_core::outcome::{Answer, Failure, FailureKind, Outcome, Phase, Response, Timing};
use std::sync::Arc;
use std::time::Duration;

pub async fn message_by_id_and_event_id(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let (application, other) = (world.application().await, world.application().await);
    let mut message = world.message(&application);
    message.event_id = Some(EventId::new("order-1").unwrap());
    message.channels = vec![Channel::new("eu").unwrap()];
    world.publish_message(message.clone()).await;
    for name in [message.id.to_string(), "order-1".to_owned()] {
        let found = world.store.message(application.id, &name).await.unwrap();
        assert_eq!(found.as_ref(), Some(&message));
        assert_eq!(world.store.message(other.id, &name).await.unwrap(), None);
    }
    assert_eq!(world.store.message(application.id, "order-2").await.unwrap(), None);
}

pub async fn messages_are_filtered(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let start = world.now();
    let mut ids = Vec::new();
    for (event_type, channels) in
        [("a", vec![]), ("b", vec!["eu"]), ("a", vec!["eu", "us"]), ("c", vec!["us"])]
    {
        let mut message = world.message(&application);
        message.event_type = EventTypeName::new(event_type).unwrap();
        message.channels =
            channels.into_iter().map(|channel| Channel::new(channel).unwrap()).collect();
        ids.push(world.publish_message(message).await);
        world.pass_secs(1);
    }
    let find = async |filter: MessageFilter| {
        let slice = world.store.messages(application.id, filter, page(50)).await.unwrap();
        assert!(!slice.more);
        let at = |id: MessageId| ids.iter().position(|known| *known == id).unwrap();
        slice.items.iter().map(|message| at(message.id)).collect::<Vec<_>>()
    };
    let all = MessageFilter::default;
    assert_eq!(find(all()).await, [3, 2, 1, 0]);
    let channel = Some(Channel::new("eu").unwrap());
    assert_eq!(find(MessageFilter { channel, ..all() }).await, [2, 1]);
    let names = ["a", "c"].map(|name| EventTypeName::new(name).unwrap()).to_vec();
    assert_eq!(find(MessageFilter { event_types: names, ..all() }).await, [3, 2, 0]);
    let second = start.after(Duration::from_secs(2));
    assert_eq!(find(MessageFilter { before: Some(second), ..all() }).await, [1, 0]);
    assert_eq!(find(MessageFilter { after: Some(second), ..all() }).await, [3, 2]);
}

pub async fn messages_in_pages(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let mut expected = Vec::new();
    for _ in 0..5 {
        expected.insert(0, world.publish(&application).await);
    }
    let list = async |from| {
        let page = Page { limit: 2, order: Order::Descending, from };
        let filter = MessageFilter::default();
        let slice = world.store.messages(application.id, filter, page).await.unwrap();
        (slice.items.iter().map(|message| message.id).collect::<Vec<_>>(), slice.more)
    };
    assert_eq!(list(None).await, (expected[..2].to_vec(), true));
    assert_eq!(list(Some(Cursor::After(expected[1]))).await, (expected[2..4].to_vec(), true));
    assert_eq!(list(Some(Cursor::After(expected[3]))).await, (expected[4..].to_vec(), false));
    assert_eq!(list(Some(Cursor::Before(expected[4]))).await, (expected[2..4].to_vec(), true));
    assert_eq!(list(Some(Cursor::Before(expected[2]))).await, (expected[..2].to_vec(), false));
}

/// A message to two endpoints: the first fails twice and is delivered, the second is given up.
async fn lively(
    world: &World,
) -> (posthaste_core::endpoint::Application, MessageId, [EndpointId; 2]) {
    let application = world.application().await;
    let endpoints = [world.endpoint(&application).await.id, world.endpoint(&application).await.id];
    let message = world.publish(&application).await;
    for round in 0..3 {
        for job in world.claim(worker(1)).await {
            if job.endpoint.id == endpoints[1] {
                world.kill(&job).await;
            } else if round < 2 {
                world.retry(&job, 1).await;
            } else {
                world.deliver(&job).await;
            }
            world.pass(Duration::from_millis(10));
        }
        world.pass_secs(2);
    }
    (application, message, endpoints)
}

pub async fn attempts_of_a_message(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let (application, message, endpoints) = lively(&world).await;
    let list = async |from, limit| {
        let page = Page { limit, order: Order::Descending, from };
        let filter = AttemptFilter::default();
        world.store.attempts_of_message(application.id, message, filter, page).await.unwrap()
    };
    let all = list(None, 50).await;
    assert_eq!(all.items.len(), 4);
    assert!(all.items.windows(2).all(|pair| pair[0].id > pair[1].id), "newest first");
    let numbers: Vec<_> = all
        .items
        .iter()
        .filter(|attempt| attempt.key.endpoint_id == endpoints[0])
        .map(|attempt| (attempt.number, attempt.verdict.as_str()))
        .collect();
    assert_eq!(numbers, [(3, "delivered"), (2, "retry"), (1, "retry")]);
    let first = list(None, 3).await;
    assert!(first.more);
    let rest = list(Some(Cursor::After(first.items[2].id)), 3).await;
    assert!(!rest.more);
    assert_eq!([first.items, rest.items].concat(), all.items);
    let other = world.application().await;
    let foreign = world
        .store
        .attempts_of_message(other.id, message, AttemptFilter::default(), page(50))
        .await
        .unwrap();
    assert!(foreign.items.is_empty());
}

pub async fn attempts_of_an_endpoint(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let (application, message, endpoints) = lively(&world).await;
    let second = world.publish(&application).await;
    for job in world.claim(worker(1)).await {
        world.deliver(&job).await;
    }
    let list = world
        .store
        .attempts_of_endpoint(endpoints[0], AttemptFilter::default(), page(50))
        .await
        .unwrap();
    let messages: Vec<_> = list.items.iter().map(|attempt| attempt.key.message_id).collect();
    assert_eq!(messages, [second, message, message, message]);
    let found =
        world.store.attempt(application.id, second, list.items[0].id).await.unwrap().unwrap();
    assert_eq!(found, list.items[0]);
    let wrong = world.store.attempt(application.id, message, list.items[0].id).await.unwrap();
    assert_eq!(wrong, None);
}

pub async fn attempts_are_filtered(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let (application, message, endpoints) = lively(&world).await;
    let count = async |filter: AttemptFilter| {
        let of_message =
            world.store.attempts_of_message(application.id, message, filter.clone(), page(50));
        let of_message = of_message.await.unwrap().items;
        let mut of_endpoints = 0;
        for endpoint in endpoints {
            let list = world.store.attempts_of_endpoint(endpoint, filter.clone(), page(50));
            of_endpoints += list.await.unwrap().items.len();
        }
        assert_eq!(of_message.len(), of_endpoints);
        of_endpoints
    };
    let all = AttemptFilter::default;
    assert_eq!(count(AttemptFilter { delivered: Some(true), ..all() }).await, 1);
    assert_eq!(count(AttemptFilter { delivered: Some(false), ..all() }).await, 3);
    assert_eq!(count(AttemptFilter { status_class: Some(500), ..all() }).await, 2);
    assert_eq!(count(AttemptFilter { status_class: Some(400), ..all() }).await, 1);
    assert_eq!(count(AttemptFilter { status_class: Some(300), ..all() }).await, 0);
    assert_eq!(count(AttemptFilter { endpoint_id: Some(endpoints[1]), ..all() }).await, 1);
    let of_type = |name: &str| AttemptFilter {
        message: MessageFilter {
            event_types: vec![EventTypeName::new(name).unwrap()],
            ..MessageFilter::default()
        },
        ..all()
    };
    assert_eq!(count(of_type("order.paid")).await, 4);
    assert_eq!(count(of_type("order.lost")).await, 0);
    // Times are those of the attempts.
    let second = MessageFilter {
        after: Some(world.now().before(Duration::from_secs(5))),
        ..MessageFilter::default()
    };
    assert_eq!(count(AttemptFilter { message: second, ..all() }).await, 2);
}

pub async fn attempt_comes_back_whole(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    let timing = Timing {
        dns: Some(Duration::from_micros(1)),
        connect: Some(Duration::from_micros(22)),
        tls: None,
        first_byte: Some(Duration::from_micros(333)),
        total: Duration::from_micros(4_444),
    };
    let response = Answer::Response(Response {
        status: 503,
        retry_after: Some("120".to_owned()),
        body: Bytes::from_static(b"busy"),
        body_cut: true,
    });
    let failure = Answer::Failure(Failure {
        kind: FailureKind::Timeout,
        phase: Phase::Headers,
        detail: "no answer within 15 s".to_owned(),
    });
    for (answer, remote) in [(response, "192.0.2.7"), (failure, "2001:db8::1")] {
        world.publish(&application).await;
        let mut claimed = world.claim(worker(1)).await;
        let job = claimed.remove(0);
        let outcome = Outcome { answer, timing, remote: Some(remote.parse().unwrap()) };
        let next_attempt_at = world.now().after(Duration::from_secs(120));
        let mut record = world.attempt(&job, outcome.clone(), Verdict::RetryAt(next_attempt_at));
        record.ended_at = world.now().after(timing.total);
        let (id, started_at) = (record.attempt_id, record.started_at);
        world.record_all(vec![(record, Arc::clone(&job.endpoint))]).await;
        let found = world.store.attempt(application.id, job.message.id, id).await.unwrap();
        let found = found.unwrap();
        assert_eq!(found.outcome, outcome);
        assert_eq!((found.key, found.number), (job.delivery.key, 1));
        assert_eq!((found.trigger, found.started_at), (Trigger::Scheduled, started_at));
        assert_eq!(found.url, job.endpoint.url.as_str());
        assert_eq!(found.verdict, "retry");
        assert_eq!(found.next_attempt_at, Some(next_attempt_at));
        world.pass_secs(200);
        for job in world.claim(worker(1)).await {
            world.deliver(&job).await;
        }
    }
}

pub async fn messages_of_an_endpoint(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(world.publish(&application).await);
    }
    let jobs = world.claim(worker(1)).await;
    world.deliver(&jobs[0]).await;
    world.kill(&jobs[1]).await;
    world.retry(&jobs[2], 60).await;
    let expected = [
        (ids[3], DeliveryState::InFlight),
        (ids[2], DeliveryState::AwaitingRetry),
        (ids[1], DeliveryState::DeadLetter),
        (ids[0], DeliveryState::Delivered),
    ];
    let list = async |states: Option<Vec<DeliveryState>>, limit, from| {
        let page = Page { limit, order: Order::Descending, from };
        let filter = MessageFilter::default();
        let slice =
            world.store.messages_of_endpoint(endpoint.id, filter, states, page).await.unwrap();
        let items = slice.items.iter();
        let items = items.map(|(message, delivery)| {
            assert_eq!(delivery.key, key(&endpoint, message.id));
            (message.id, delivery.state)
        });
        (items.collect::<Vec<_>>(), slice.more)
    };
    assert_eq!(list(None, 50, None).await, (expected.to_vec(), false));
    assert_eq!(list(None, 3, None).await, (expected[..3].to_vec(), true));
    let after = Some(Cursor::After(ids[2]));
    assert_eq!(list(None, 3, after).await, (expected[2..].to_vec(), false));
    for (id, state) in expected {
        let found = list(Some(vec![state]), 50, None).await;
        assert_eq!(found, (vec![(id, state)], false));
    }
    // What is sent again is open, and listed once.
    world.store.resend(jobs[1].delivery.key, world.now()).await.unwrap();
    let (items, _) = list(None, 50, None).await;
    assert_eq!(items[2], (ids[1], DeliveryState::AwaitingRetry));
    assert_eq!(items.len(), 4);
}

pub async fn deliveries_of_a_message(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let mut expected = Vec::new();
    for _ in 0..5 {
        expected.push(world.endpoint(&application).await.id);
    }
    let message = world.publish(&application).await;
    world.endpoint(&application).await;
    for (index, job) in world.claim(worker(1)).await.iter().enumerate() {
        match index {
            0 => world.deliver(job).await,
            1 => world.kill(job).await,
            _ => world.retry(job, 60).await,
        };
    }
    world.store.delete_endpoint(expected[3], world.now()).await.unwrap();
    world.steps().await;
    let list = async |page| {
        world.store.deliveries_of_message(application.id, message, page).await.unwrap()
    };
    let all = list(Page { limit: 50, order: Order::Ascending, from: None }).await;
    let ids: Vec<_> = all.items.iter().map(|delivery| delivery.key.endpoint_id).collect();
    assert_eq!(ids, expected);
    for delivery in &all.items {
        assert_eq!(*delivery, world.delivery(delivery.key).await);
    }
    assert_eq!(all.items[3].state, DeliveryState::Cancelled);
    let from = Some(Cursor::Before(expected[4]));
    let part = list(Page { limit: 2, order: Order::Ascending, from }).await;
    assert_eq!(part.items, all.items[2..4]);
    assert!(part.more);
}

pub async fn dead_letters_are_listed(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let mut dead = Vec::new();
    for _ in 0..3 {
        let application = world.application().await;
        world.endpoint(&application).await;
        world.publish(&application).await;
        let job = world.claim_one(worker(1)).await;
        world.pass_secs(10);
        world.kill(&job).await;
        dead.insert(0, (application.id, job.delivery.key, world.now()));
    }
    let keys = |picked: &[usize]| -> Vec<DeliveryKey> {
        picked.iter().map(|index| dead[*index].1).collect()
    };
    let list = async |filter: DeadLetterFilter| {
        let slice = world.store.dead_letters(filter, page(50)).await.unwrap();
        slice.items.iter().map(|delivery| delivery.key).collect::<Vec<_>>()
    };
    let all = DeadLetterFilter::default;
    assert_eq!(list(all()).await, keys(&[0, 1, 2]));
    let only = |ids: Vec<usize>| Some(ids.into_iter().map(|index| dead[index].0).collect());
    let filter = DeadLetterFilter { application_ids: only(vec![]), ..all() };
    assert!(list(filter).await.is_empty());
    let filter = DeadLetterFilter { application_ids: only(vec![2, 0]), ..all() };
    assert_eq!(list(filter).await, keys(&[0, 2]));
    let endpoint_id = Some(dead[1].1.endpoint_id);
    assert_eq!(list(DeadLetterFilter { endpoint_id, ..all() }).await, keys(&[1]));
    let filter = DeadLetterFilter { endpoint_id, application_ids: only(vec![0]), ..all() };
    assert!(list(filter).await.is_empty());
    let at = Some(dead[1].2);
    assert_eq!(list(DeadLetterFilter { before: at, ..all() }).await, keys(&[2]));
    assert_eq!(list(DeadLetterFilter { after: at, ..all() }).await, keys(&[0, 1]));
    world.store.resend(dead[1].1, world.now()).await.unwrap();
    assert_eq!(list(all()).await, keys(&[0, 2]), "it is on its way again");
    let first = &world.store.dead_letters(all(), page(1)).await.unwrap().items[0];
    assert_eq!(*first, world.delivery(dead[0].1).await);
}

pub async fn dead_letters_in_pages(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    for _ in 0..3 {
        world.endpoint(&application).await;
    }
    let mut messages = Vec::new();
    for _ in 0..3 {
        messages.insert(0, world.publish(&application).await);
        for job in world.claim(worker(1)).await {
            world.kill(&job).await;
        }
    }
    // A page never ends within a message, so none of its deliveries is skipped.
    let list = async |limit, from| {
        let page = Page { limit, order: Order::Descending, from };
        let slice = world.store.dead_letters(DeadLetterFilter::default(), page).await.unwrap();
        let of = |index: usize| {
            let is =
                |delivery: &&crate::history::Delivery| delivery.key.message_id == messages[index];
            slice.items.iter().filter(is).count()
        };
        ([of(0), of(1), of(2)], slice.more)
    };
    assert_eq!(list(2, None).await, ([3, 0, 0], true));
    assert_eq!(list(3, None).await, ([3, 0, 0], true));
    assert_eq!(list(4, None).await, ([3, 3, 0], true));
    assert_eq!(list(4, Some(Cursor::After(messages[0]))).await, ([0, 3, 3], false));
    assert_eq!(list(1, Some(Cursor::Before(messages[2]))).await, ([0, 3, 0], true));
    assert_eq!(list(50, None).await, ([3, 3, 3], false));
}
