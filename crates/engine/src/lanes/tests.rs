use super::*;
use bytes::Bytes;
use posthaste_core::breaker::{Breaker, BreakerPolicy, Position};
use posthaste_core::delivery::{Class, DeliveryKey, Lease, Trigger};
use posthaste_core::endpoint::{Endpoint, EndpointHeaders, EndpointPolicy, EndpointUrl};
use posthaste_core::event::EventTypeName;
use posthaste_core::id::{ApplicationId, MessageId};
use posthaste_core::message::Message;
use posthaste_core::sign::{Secret, SecretRing};
use posthaste_core::time::Timestamp;
use proptest::prelude::*;
use std::sync::atomic::{AtomicI64, Ordering};

const CAPACITY: Capacity = Capacity { in_flight_max: 10, waiting_max: 1_000, bytes_max: 1_000_000 };

const QUICK: Duration = Duration::from_millis(5);

struct HandClock(AtomicI64);

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// A claim that found nothing left anywhere.
fn all_asked() -> Asked {
    Asked { lane_max: 32, had_all: true, ..Asked::default() }
}

struct Bench {
    lanes: Lanes,
    started: Arc<Mutex<Vec<Job>>>,
    clock: Arc<HandClock>,
}

impl Bench {
    fn new() -> Self {
        let started = Arc::new(Mutex::new(Vec::new()));
        let clock = Arc::new(HandClock(AtomicI64::new(1_000_000_000_000)));
        let rules =
            LaneRules { breaker: BreakerPolicy::default(), disable_after: None, in_flight_max: 4 };
        let worker = WorkerId::from_bytes([9; 16]);
        let sink = started.clone();
        let start = move |job| sink.lock().unwrap().push(job);
        let lease = Duration::from_secs(60);
        let lanes = Lanes::new(worker, lease, rules, CAPACITY, clock.clone(), Box::new(start));
        Self { lanes, started, clock }
    }

    /// Reserves and hands over, as an accept does; false when there was no room.
    fn accept(&self, endpoint: u8, message: u64, class: Class) -> bool {
        let job = job(endpoint, message, class);
        let Some(room) = self.lanes.reserve(job.endpoint.id, 10) else { return false };
        assert_eq!(room.bytes, 10);
        self.lanes.hand_over(vec![job]);
        true
    }

    fn started(&self) -> Vec<(u8, u64)> {
        let started = std::mem::take(&mut *self.started.lock().unwrap());
        started.iter().map(numbers).collect()
    }
}

fn numbers(job: &Job) -> (u8, u64) {
    let bytes = job.message.id.as_bytes();
    (job.endpoint.id.as_bytes()[0], u64::from_be_bytes(bytes[8..].try_into().unwrap()))
}

fn endpoint_id(number: u8) -> EndpointId {
    EndpointId::from_bytes([number; 16])
}

fn job(endpoint: u8, message: u64, class: Class) -> Job {
    let now = Timestamp::from_secs(1_000_000);
    let application_id = ApplicationId::from_bytes([7; 16]);
    let mut id = [0; 16];
    id[8..].copy_from_slice(&message.to_be_bytes());
    let message = Message {
        id: MessageId::from_bytes(id),
        application_id,
        event_id: None,
        event_type: EventTypeName::new("test").unwrap(),
        channels: Vec::new(),
        payload: Some(Bytes::from_static(b"0123456789")),
        created_at: now,
        expires_at: now,
    };
    let secret = Secret::parse("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=").unwrap();
    let endpoint = Endpoint {
        id: endpoint_id(endpoint),
        application_id,
        uid: None,
        url: EndpointUrl::parse("http://127.0.0.1/").unwrap(),
        description: String::new(),
        disabled: None,
        event_types: None,
        channels: None,
        throttle_rate: None,
        version: 1,
        metadata: Default::default(),
        headers: EndpointHeaders::default(),
        secrets: SecretRing::new(secret),
        policy: EndpointPolicy::default(),
        created_at: now,
        updated_at: now,
    };
    let lease = Lease { worker_id: WorkerId::from_bytes([9; 16]), number: 1, until: now };
    Job {
        delivery: LeasedDelivery {
            key: DeliveryKey { endpoint_id: endpoint.id, message_id: message.id },
            application_id,
            lease,
            attempt: 1,
            plan_attempt: 1,
            class,
            trigger: Trigger::Scheduled,
            planned_at: None,
            accepted_at: now,
            probe: false,
        },
        message: Arc::new(message),
        endpoint: Arc::new(endpoint),
    }
}

#[test]
fn a_lane_never_has_more_in_flight_than_its_bound() {
    let bench = Bench::new();
    for message in 0..20 {
        assert!(bench.accept(1, message, Class::First));
    }
    assert_eq!(bench.started().len(), 4);
    assert_eq!(bench.lanes.occupancy().waiting, 16);
    let next = bench.lanes.finished(endpoint_id(1), Weight::Good, QUICK, 10).unwrap();
    assert_eq!(numbers(&next), (1, 4));
    assert_eq!(bench.started(), []);
}

#[test]
fn lanes_take_turns() {
    let bench = Bench::new();
    for message in 0..10 {
        bench.accept(1, message, Class::First);
        bench.accept(2, message, Class::First);
    }
    bench.started();
    // Both have shown that they are well; from then on each finished job makes room for one.
    for endpoint in [1, 2] {
        bench.lanes.finished(endpoint_id(endpoint), Weight::Good, QUICK, 10).unwrap();
    }
    bench.started();
    let mut turns = [0, 0];
    for turn in 0..8 {
        let next =
            bench.lanes.finished(endpoint_id(1 + turn % 2), Weight::Good, QUICK, 10).unwrap();
        turns[usize::from(numbers(&next).0) - 1] += 1;
    }
    assert_eq!(turns, [4, 4]);
}

#[test]
fn sick_lanes_leave_half_of_the_room() {
    let bench = Bench::new();
    for endpoint in 1..=20 {
        for message in 0..3 {
            bench.accept(endpoint, message, Class::First);
        }
    }
    assert_eq!(bench.started().len(), 5, "lanes that never answered well share half");
    let healthy = bench.lanes.finished(endpoint_id(1), Weight::Good, QUICK, 10);
    assert!(healthy.is_some());
}

#[test]
fn a_failing_lane_is_narrowed_and_widens_again() {
    let bench = Bench::new();
    for message in 0..40 {
        bench.accept(1, message, Class::First);
    }
    bench.started();
    bench.lanes.finished(endpoint_id(1), Weight::Bad, QUICK, 10);
    assert_eq!(bench.lanes.occupancy().in_flight, 4, "quick failures are the breaker's business");
    for _ in 0..4 {
        bench.lanes.finished(endpoint_id(1), Weight::Bad, SLOW, 10);
    }
    assert_eq!(bench.lanes.occupancy().in_flight, 2);
    for _ in 0..4 {
        bench.lanes.finished(endpoint_id(1), Weight::Good, QUICK, 10);
    }
    assert_eq!(bench.lanes.occupancy().in_flight, 4);
}

#[test]
fn lower_classes_get_a_turn() {
    let bench = Bench::new();
    for message in 0..20 {
        bench.accept(1, message, Class::First);
    }
    assert!(bench.accept(1, 100, Class::Replay));
    bench.started();
    let replayed = (0..8)
        .filter_map(|_| bench.lanes.finished(endpoint_id(1), Weight::Good, QUICK, 10))
        .any(|job| numbers(&job).1 == 100);
    assert!(replayed);
}

#[test]
fn an_open_breaker_takes_nothing_and_gives_back_what_waits() {
    let bench = Bench::new();
    for message in 0..10 {
        bench.accept(1, message, Class::First);
    }
    let until = bench.clock.now().after(Duration::from_secs(5));
    let breaker = Breaker { position: Position::Open { until }, ..Breaker::default() };
    let health = Health { breaker, ..Health::default() };
    let given_back = bench.lanes.refresh(&[(endpoint_id(1), health)]);
    assert_eq!(given_back.len(), 6);
    assert!(!bench.accept(1, 11, Class::First));
    assert_eq!(bench.lanes.occupancy().waiting, 0);
}

#[test]
fn what_waited_too_long_goes_back_to_the_store() {
    let bench = Bench::new();
    for message in 0..6 {
        bench.accept(1, message, Class::First);
    }
    assert_eq!(bench.lanes.tidy(), []);
    let later = bench.clock.now().after(WAITING_FOR_MAX + Duration::from_millis(1));
    bench.clock.0.store(later.as_micros(), Ordering::Relaxed);
    assert_eq!(bench.lanes.tidy().len(), 2);
    assert!(!bench.accept(1, 7, Class::First), "those in the store go first");
    let asked = all_asked();
    bench.lanes.take_claimed(Vec::new(), &asked);
    assert!(bench.accept(1, 8, Class::First));
}

#[test]
fn nothing_starts_once_stopped() {
    let bench = Bench::new();
    for message in 0..6 {
        bench.accept(1, message, Class::First);
    }
    bench.started();
    assert_eq!(bench.lanes.stop().len(), 2);
    assert!(bench.lanes.terms().is_none());
    assert!(!bench.accept(1, 9, Class::First));
    assert!(bench.lanes.finished(endpoint_id(1), Weight::Good, QUICK, 10).is_none());
    assert_eq!(bench.lanes.room(), 0);
}

proptest! {
    /// Whatever happens in whatever order, the counts stay within their bounds and come back to
    /// zero when everything is done.
    #[test]
    fn counts_hold_and_return_to_zero(
        steps in prop::collection::vec((0_u8..4, 1_u8..6, 0_u8..3), 1..300),
    ) {
        let bench = Bench::new();
        let mut running: Vec<EndpointId> = Vec::new();
        for (step, endpoint, weight) in steps {
            let weight = [Weight::Good, Weight::Bad, Weight::Neutral][usize::from(weight)];
            match step {
                0 | 1 => {
                    bench.accept(endpoint, 0, Class::First);
                }
                2 if !running.is_empty() => {
                    let id = running.remove(usize::from(endpoint) % running.len());
                    let next = bench.lanes.finished(id, weight, SLOW, 10);
                    running.extend(next.map(|job| job.endpoint.id));
                }
                _ => {
                    if let Some(room) = bench.lanes.reserve(endpoint_id(endpoint), 10) {
                        bench.lanes.release(room);
                    }
                }
            }
            running.extend(bench.started().iter().map(|(endpoint, _)| endpoint_id(*endpoint)));
            let occupancy = bench.lanes.occupancy();
            prop_assert_eq!(occupancy.in_flight, running.len());
            prop_assert!(occupancy.in_flight <= CAPACITY.in_flight_max);
            for endpoint in 1..6 {
                let in_flight = running.iter().filter(|id| **id == endpoint_id(endpoint)).count();
                prop_assert!(in_flight <= 4);
            }
        }
        while let Some(id) = running.pop() {
            let next = bench.lanes.finished(id, Weight::Good, QUICK, 10);
            running.extend(next.map(|job| job.endpoint.id));
            running.extend(bench.started().iter().map(|(endpoint, _)| endpoint_id(*endpoint)));
        }
        let occupancy = bench.lanes.occupancy();
        prop_assert_eq!((occupancy.in_flight, occupancy.waiting), (0, 0));
        let table = bench.lanes.lock();
        prop_assert_eq!((table.in_flight_unproven, table.bytes), (0, 0));
    }
}

#[tokio::test]
async fn a_publisher_is_held_back_until_memory_has_room_for_its_endpoints() {
    let bench = Bench::new();
    let first = job(1, 0, Class::First);
    // The lane has answered well, so that it is the memory that is short and not the endpoint.
    assert!(bench.accept(1, 0, Class::First));
    bench.lanes.finished(endpoint_id(1), Weight::Good, QUICK, 10);
    let accepted = (1..).take_while(|message| bench.accept(1, *message, Class::First)).count();
    assert!(accepted >= CAPACITY.waiting_max - 10, "{accepted}");
    let endpoints = [first.endpoint];
    let held = tokio::time::timeout(QUICK, bench.lanes.relieved(&endpoints)).await;
    assert!(held.is_err(), "nothing has room");

    let other = [job(2, 0, Class::First).endpoint];
    while bench.lanes.finished(endpoint_id(1), Weight::Good, QUICK, 10).is_some() {}
    bench.lanes.relieved(&other).await;
    let asked = all_asked();
    bench.lanes.take_claimed(Vec::new(), &asked);
    bench.lanes.relieved(&endpoints).await;
}

#[test]
fn payloads_in_flight_fill_the_memory_too() {
    let bench = Bench::new();
    let large = |endpoint: u8| {
        let mut job = job(endpoint, 0, Class::First);
        let message = Message { payload: Some(vec![0; 400_000].into()), ..(*job.message).clone() };
        job.message = Arc::new(message);
        job
    };
    // Lanes that have not answered yet share half of it, whatever the first one takes.
    for (endpoint, fits) in [(1, true), (2, false)] {
        let room = bench.lanes.reserve(endpoint_id(endpoint), 400_000);
        assert_eq!(room.is_some(), fits, "endpoint {endpoint}");
        if room.is_some() {
            bench.lanes.hand_over(vec![large(endpoint)]);
        }
    }
    assert_eq!(bench.started(), [(1, 0)], "it is in flight and no longer waits");
    bench.lanes.finished(endpoint_id(1), Weight::Good, QUICK, 400_000);
    assert!(
        bench.lanes.reserve(endpoint_id(2), 400_000).is_none(),
        "the store has one to go first"
    );
    assert!(bench.lanes.reserve(endpoint_id(3), 400_000).is_some());
}

#[tokio::test]
async fn an_endpoint_that_hangs_after_it_was_well_holds_nobody_back() {
    let bench = Bench::new();
    let endpoints = [job(1, 0, Class::First).endpoint];
    assert!(bench.accept(1, 0, Class::First));
    bench.lanes.finished(endpoint_id(1), Weight::Good, QUICK, 10);
    let mut message = 1;
    while bench.accept(1, message, Class::First) {
        message += 1;
    }
    let held = tokio::time::timeout(QUICK, bench.lanes.relieved(&endpoints)).await;
    assert!(held.is_err(), "so far it is only busy");

    let later = bench.clock.now().after(WAITING_FOR_MAX + STUCK_AFTER);
    bench.clock.0.store(later.as_micros(), Ordering::Relaxed);
    assert!(!bench.lanes.tidy().is_empty());
    bench.lanes.relieved(&endpoints).await;
    assert_eq!(bench.lanes.lock().in_flight_unproven, 4, "what it holds counts as a sick lane's");
}
