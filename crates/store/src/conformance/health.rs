//! What a lane's health lets through: rate limits, breakers, ramps, quiet, disabling.

use super::Ground;
use super::world::*;
use crate::outbox::Claimed;
use posthaste_core::breaker::Position;
use posthaste_core::delivery::{Cause, DeliveryState, Trigger, Verdict};
use posthaste_core::endpoint::{DisabledReason, Endpoint};
use posthaste_core::lane::Event;
use posthaste_core::limiter::RateLimit;
use posthaste_core::outcome::Response;
use std::time::Duration;

const ONE_A_MINUTE: RateLimit = RateLimit { count: 1, period_ms: 60_000, burst: 1 };

fn limited(endpoint: &mut Endpoint) {
    endpoint.policy.rate_limit = Some(ONE_A_MINUTE);
}

pub async fn f067_rate_limit_holds(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint_with(&application, limited).await;
    for _ in 0..5 {
        world.publish(&application).await;
    }
    let start = world.now();
    let mut sent_at = Vec::new();
    while sent_at.len() < 5 {
        let claimed = world.claimed(worker(1)).await;
        let next_due_at = claimed.next_due_at;
        for job in jobs(claimed) {
            sent_at.push(world.now().since(start).as_secs());
            assert_eq!(job.delivery.attempt, 1, "waiting for a token is no attempt");
            world.deliver(&job).await;
        }
        // Sleeping until the time that was told is enough.
        if let Some(at) = next_due_at {
            assert!(at > world.now(), "a claim that found nothing must not be due at once");
            world.pass(at.since(world.now()));
        }
    }
    assert_eq!(sent_at, [0, 60, 120, 180, 240]);
}

pub async fn f067_rate_limit_holds_over_processes(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint_with(&application, limited).await;
    for _ in 0..5 {
        world.publish(&application).await;
    }
    let mut sent = 0;
    for minute in 0..5 {
        // Each time two processes that know nothing of what was before.
        let (one, other) = (world.another(ground).await, world.another(ground).await);
        let (first, second) = tokio::join!(one.claim(worker(1)), other.claim(worker(2)));
        sent += first.len() + second.len();
        assert_eq!(sent, minute + 1);
        world.pass_secs(60);
    }
}

pub async fn application_rate_limit(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let mut application = world.new_application();
    application.throttle_rate = Some(10);
    world.store.create_application(application.clone()).await.unwrap();
    for _ in 0..2 {
        world.endpoint(&application).await;
    }
    for _ in 0..10 {
        world.publish(&application).await;
    }
    // Twenty deliveries over two endpoints, ten a second together, by two processes in turn.
    let other = world.another(ground).await;
    other.pass(world.now().since(other.now()));
    let mut processes = [(&world, worker(1)), (&other, worker(2))];
    let mut sent = Vec::new();
    while sent.len() < 20 {
        let (process, worker) = processes[0];
        let claimed = process.claimed(worker).await;
        let next = claimed.next_due_at;
        sent.extend(jobs(claimed).iter().map(|_| world.now()));
        let Some(at) = next else { break };
        let pause = at.since(world.now()).max(Duration::from_millis(1));
        world.pass(pause);
        other.pass(pause);
        processes.reverse();
    }
    assert_eq!(sent.len(), 20);
    for pair in sent.windows(11) {
        let span = pair[10].since(pair[0]);
        assert!(span >= Duration::from_millis(999), "eleven within {span:?}");
    }
}

pub async fn waiting_for_a_token_costs_no_attempt(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint_with(&application, limited).await;
    let messages = [world.publish(&application).await, world.publish(&application).await];
    world.claim_one(worker(1)).await;
    for _ in 0..10 {
        world.pass_secs(1);
        assert!(world.claim(worker(1)).await.is_empty());
    }
    let delivery = world.delivery(key(&endpoint, messages[1])).await;
    assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Pending, 0));
}

pub async fn open_breaker_is_passed_over(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    world.open_breaker(&application).await;
    let before = world.now();
    let message = world.publish(&application).await;
    let claimed = world.claimed(worker(1)).await;
    assert!(claimed.lanes.is_empty());
    // Nothing is sent before the cooldown is over, and the worker hears of that time.
    assert_eq!(claimed.next_due_at, Some(before.after(Duration::from_secs(5))));
    assert_eq!(world.delivery(key(&endpoint, message)).await.attempts, 0);
    assert_eq!(world.store.status(world.now()).await.unwrap().breakers_open, 1);
}

pub async fn open_breaker_costs_new_messages_nothing(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.open_breaker(&application).await;
    let until = world.now().after(Duration::from_secs(5));
    for _ in 0..20 {
        world.publish(&application).await;
        world.pass(Duration::from_millis(100));
        assert_eq!(world.claimed(worker(1)).await.next_due_at, Some(until));
    }
}

pub async fn one_probe_of_all_processes(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.open_breaker(&application).await;
    for _ in 0..10 {
        world.publish(&application).await;
    }
    let other = world.another(ground).await;
    world.pass_secs(5);
    other.pass(world.now().since(other.now()));
    let (one, two) = tokio::join!(world.claim(worker(1)), other.claim(worker(2)));
    let probes: Vec<_> = one.iter().chain(&two).collect();
    assert_eq!(probes.len(), 1);
    assert!(probes[0].delivery.probe);
    // While it is out, nothing else goes; when its lease is over, another may.
    world.pass(LEASE - Duration::from_millis(1));
    assert!(world.claim(worker(3)).await.is_empty());
    world.pass(Duration::from_millis(1));
    assert!(world.claim_one(worker(3)).await.delivery.probe);
}

pub async fn probe_that_fails(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.open_breaker(&application).await;
    world.publish(&application).await;
    world.pass_secs(5);
    let probe = world.claim_one(worker(1)).await;
    let recorded = world.retry(&probe, 3_600).await;
    let Event::Reopened { until } = recorded.events[0].event else {
        panic!("the breaker opens again")
    };
    // Twice the cooldown, less a fifth at most.
    assert!(until >= world.now().after(Duration::from_secs(8)));
    assert!(until <= world.now().after(Duration::from_secs(10)));
    assert_eq!(world.claimed(worker(1)).await.next_due_at, Some(until));
}

pub async fn late_probe_of_an_earlier_outage(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    world.publish(&application).await;
    let slow = world.claim_one(worker(1)).await;
    world.open_breaker(&application).await;
    world.pass_secs(5);
    let first = world.claim_one(worker(1)).await;
    // An attempt from before the outage succeeds while the probe is out, and a new outage begins.
    world.deliver(&slow).await;
    world.publish(&application).await;
    for job in world.claim(worker(1)).await {
        world.retry(&job, 3_600).await;
    }
    world.pass_secs(5);
    let second = world.claim_one(worker(1)).await;
    assert!(first.delivery.probe && second.delivery.probe);
    let position = Position::HalfOpen { probe_until: second.delivery.lease.until };
    // The first probe's failure tells nothing about the new outage: the second is waited for.
    let recorded = world.retry(&first, 3_600).await;
    assert_eq!(recorded.events, []);
    let health = world.store.health(endpoint.id, world.now()).await.unwrap().unwrap();
    assert_eq!(health.health.breaker.position, position);
    assert!(world.claim(worker(2)).await.is_empty(), "one probe at a time");
}

/// Opens a breaker with `waiting` more deliveries behind it, and lets the probe succeed.
async fn recovered(world: &World, waiting: usize) -> posthaste_core::lane::Health {
    let application = world.application().await;
    world.endpoint(&application).await;
    world.open_breaker(&application).await;
    for _ in 0..waiting {
        world.publish(&application).await;
    }
    world.pass_secs(5);
    let probe = world.claim_one(worker(1)).await;
    let recorded = world.deliver(&probe).await;
    assert_eq!(recorded.events[0].event, Event::Closed);
    assert!(recorded.due_now, "what waits may go at once");
    recorded.lanes[0].1
}

pub async fn probe_that_succeeds_drains(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let health = recovered(&world, 5).await;
    let mut width = usize::try_from(health.ramp.expect("a ramp")).unwrap();
    // Three of the seven that wait are not due for an hour; none waits for that.
    let mut left = 7;
    while left > 0 {
        let jobs = world.claim(worker(1)).await;
        assert_eq!(jobs.len(), left.min(width));
        left -= jobs.len();
        for job in &jobs {
            let recorded = world.deliver(job).await;
            width = recorded.lanes[0].1.ramp.map_or(0, |ramp| usize::try_from(ramp).unwrap());
        }
    }
    assert_eq!(width, 0, "the ramp ends with the last of them");
    assert!(world.claim(worker(1)).await.is_empty());
}

pub async fn ramp_holds_over_processes(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let health = recovered(&world, 20).await;
    let width = usize::try_from(health.ramp.expect("a ramp")).unwrap();
    let other = world.another(ground).await;
    let (one, two) = tokio::join!(world.claim(worker(1)), other.claim(worker(2)));
    assert_eq!(one.len() + two.len(), width);
    let claimed = world.claimed(worker(3)).await;
    assert!(claimed.lanes.is_empty());
    let next = claimed.next_due_at.expect("the rest is not forgotten");
    assert!(next > world.now(), "a full ramp is not due at once");
}

pub async fn ramp_ends_when_nothing_waits(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    let waiting = world.open_breaker(&application).await;
    world.pass_secs(5);
    for expected in [2, 1, 0] {
        for job in world.claim(worker(1)).await {
            world.deliver(&job).await;
        }
        let health = world.store.health(endpoint.id, world.now()).await.unwrap().unwrap();
        if health.waiting == 0 {
            assert_eq!(health.health.ramp, None);
            break;
        }
        assert!(health.waiting <= expected);
    }
    for key in waiting {
        assert_eq!(world.state(key).await, DeliveryState::Delivered);
    }
}

pub async fn early_probe_leaves_the_plan(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.open_breaker(&application).await;
    let planned_at = world.now().after(Duration::from_secs(3_600));
    world.pass_secs(5);
    // Nothing is due, but a recovery must be noticed.
    let probe = world.claim_one(worker(1)).await;
    assert!(probe.delivery.probe);
    assert_eq!(probe.delivery.trigger, Trigger::Manual);
    assert_eq!(probe.delivery.planned_at, Some(planned_at));
    assert_eq!((probe.delivery.attempt, probe.delivery.plan_attempt), (2, 1));
    world.record(&probe, status(500), Verdict::RetryAt(planned_at)).await;
    let delivery = world.delivery(probe.delivery.key).await;
    assert_eq!(delivery.next_attempt_at, Some(planned_at));
}

pub async fn unused_probe_frees_its_place(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.open_breaker(&application).await;
    world.publish(&application).await;
    world.pass_secs(5);
    let unused = world.claim_one(worker(1)).await;
    assert!(world.claim(worker(2)).await.is_empty());
    world.store.give_back(vec![unused.delivery], world.now()).await.unwrap();
    assert!(world.claim_one(worker(2)).await.delivery.probe);
}

pub async fn lost_probe_frees_its_place(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.open_breaker(&application).await;
    world.publish(&application).await;
    world.pass_secs(5);
    assert!(world.claim_one(worker(1)).await.delivery.probe);
    // Its worker stops with the probe in flight; the next one's worker dies.
    world.store.retire(worker(1), world.now()).await.unwrap();
    assert!(world.claim_one(worker(2)).await.delivery.probe);
    let silent_since = world.now().after(Duration::from_micros(1));
    assert_eq!(world.store.recover(world.now(), silent_since).await.unwrap(), 1);
    assert!(world.claim_one(worker(3)).await.delivery.probe);
}

pub async fn quiet_when_asked(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    world.endpoint(&application).await;
    world.publish(&application).await;
    world.publish(&application).await;
    let jobs = world.claim(worker(1)).await;
    let response =
        Response { status: 429, retry_after: Some("30".to_owned()), ..Response::default() };
    let at = world.now().after(Duration::from_secs(30));
    world.record(&jobs[0], respond(response), Verdict::RetryAt(at)).await;
    world.store.give_back(vec![jobs[1].delivery], world.now()).await.unwrap();
    let claimed = world.claimed(worker(1)).await;
    assert!(claimed.lanes.is_empty());
    assert_eq!(claimed.next_due_at, Some(at));
    world.pass_secs(30);
    assert_eq!(world.claim(worker(1)).await.len(), 2);
}

pub async fn gone_disables(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    world.publish(&application).await;
    let job = world.claim_one(worker(1)).await;
    let waiting = world.publish(&application).await;
    let old = world.acceptance(world.message(&application)).await;
    let recorded = world.record(&job, status(410), Verdict::Dead(Cause::Gone)).await;
    assert!(recorded.events.iter().any(|event| event.event == Event::Gone));
    let name = endpoint.id.to_string();
    let found = world.store.endpoint(application.id, &name).await.unwrap().unwrap();
    assert_eq!(found.disabled, Some(DisabledReason::Gone));
    assert!(found.updated_at > endpoint.updated_at);
    let routes = world.store.routes(application.id).await.unwrap().unwrap();
    assert!(routes.version > old.routes_version);
    assert_eq!(routes.endpoints[0].disabled, Some(DisabledReason::Gone));
    assert!(world.claim(worker(1)).await.is_empty());
    world.steps().await;
    assert_eq!(world.state(key(&endpoint, waiting)).await, DeliveryState::Held);
    let notices = world.store.notices(Some(application.id), 10).await.unwrap();
    assert_eq!(notices.len(), 1);
    assert_eq!(notices[0].kind, "endpoint.disabled");
    assert!(notices[0].detail.contains("410"));
}

/// Lets the endpoint fail once an hour, for so many hours.
async fn fail_hourly(world: &World, hours: usize) -> Vec<Event> {
    let application = world.application().await;
    world.endpoint(&application).await;
    let mut events = Vec::new();
    for _ in 0..hours {
        world.publish(&application).await;
        for job in world.claim(worker(1)).await {
            let cause = Cause::Exhausted(status(500).class());
            let recorded = world.record(&job, status(500), Verdict::Dead(cause)).await;
            events.extend(recorded.events.iter().map(|event| event.event));
        }
        world.pass_secs(3_600);
    }
    events
}

pub async fn failing_disables(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let events = fail_hourly(&world, 5 * 24 + 2).await;
    let exhausted = |event: &&Event| matches!(event, Event::Exhausted { .. });
    assert_eq!(events.iter().filter(exhausted).count(), 1);
    let status = world.store.status(world.now()).await.unwrap();
    assert_eq!(status.endpoints_disabled, 1);
    assert_eq!(status.breakers_open, 0, "a disabled endpoint is no open breaker");
    let notices = world.store.notices(None, 10).await.unwrap();
    assert_eq!(notices[0].kind, "endpoint.disabled");
    assert!(notices[0].detail.contains("without a break since"));
}

pub async fn failing_warns(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let events = fail_hourly(&world, 5 * 24 - 1).await;
    let percents: Vec<u8> = events
        .iter()
        .filter_map(|event| match event {
            Event::Failing { percent, .. } => Some(*percent),
            _ => None,
        })
        .collect();
    assert_eq!(percents, [50, 75, 90]);
    let notices = world.store.notices(None, 10).await.unwrap();
    assert_eq!(notices.len(), 3);
    assert!(notices.iter().all(|notice| notice.kind == "endpoint.failing"));
}

pub async fn sick_lane_leaves_others_alone(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let (sick, well) = (world.application().await, world.application().await);
    world.endpoint(&sick).await;
    world.endpoint(&well).await;
    world.open_breaker(&sick).await;
    for _ in 0..200 {
        world.publish(&sick).await;
    }
    world.publish(&well).await;
    let Claimed { lanes, .. } = world.claimed(worker(1)).await;
    assert_eq!(lanes.len(), 1);
    assert_eq!(lanes[0].deliveries[0].0.application_id, well.id);
}

pub async fn health_survives_a_restart(ground: &dyn Ground) {
    let world = World::new(ground).await;
    let application = world.application().await;
    let endpoint = world.endpoint(&application).await;
    world.open_breaker(&application).await;
    let before = world.store.health(endpoint.id, world.now()).await.unwrap().unwrap();
    assert!(matches!(before.health.breaker.position, Position::Open { .. }));
    world.store.close().await.unwrap();
    let again = world.another(ground).await;
    let after = again.store.health(endpoint.id, again.now()).await.unwrap().unwrap();
    assert_eq!(after.health, before.health);
    assert_eq!((after.waiting, after.held), (3, 0));
}
