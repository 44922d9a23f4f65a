use super::*;
use crate::outcome::FailureKind;
use crate::time::within;
use proptest::prelude::*;

const START: Timestamp = Timestamp::from_secs(1_700_000_000);
const DAY: u64 = 86_400;
const OK: OutcomeClass = OutcomeClass::Success;
const FAILED: OutcomeClass = OutcomeClass::Status(500);

fn at(secs: u64) -> Timestamp {
    START.after(Duration::from_secs(secs))
}

fn seen(secs: u64, class: OutcomeClass) -> Observation {
    let latency = Duration::from_millis(5);
    Observation { at: at(secs), class, retry_after: None, latency, probe: false }
}

fn probe(secs: u64, class: OutcomeClass) -> Observation {
    Observation { probe: true, ..seen(secs, class) }
}

fn asking(wait_secs: u64, seen: Observation) -> Observation {
    Observation { retry_after: Some(Duration::from_secs(wait_secs)), ..seen }
}

fn rules(failure_threshold: u32) -> LaneRules {
    let breaker = BreakerPolicy { failure_threshold, ..BreakerPolicy::default() };
    LaneRules { breaker, ..LaneRules::default() }
}

/// Settles with the roll that takes nothing off a cooldown.
fn settle(health: &mut Health, rules: &LaneRules, seen: Observation) -> Vec<Event> {
    health.settle(rules, &seen, 0)
}

/// A lane whose breaker opened at `START`, until 5 s after it.
fn opened(rules: &LaneRules) -> Health {
    let mut health = Health::default();
    for _ in 0..rules.breaker.failure_threshold {
        settle(&mut health, rules, seen(0, FAILED));
    }
    assert_eq!(health.admit(rules, at(4)), Admission::Wait { until: at(5) });
    health
}

#[test]
fn the_breaker_opens_probes_doubles_and_closes() {
    let rules = rules(3);
    let mut health = Health::default();
    assert_eq!(settle(&mut health, &rules, seen(0, FAILED)), []);
    assert_eq!(settle(&mut health, &rules, seen(0, FAILED)), []);
    let events = settle(&mut health, &rules, seen(0, FAILED));
    assert_eq!(events, [Event::Opened { until: at(5) }]);

    assert_eq!(health.admit(&rules, at(5)), Admission::Probe);
    health.probe(at(35));
    assert_eq!(health.admit(&rules, at(6)), Admission::Wait { until: at(35) });
    let events = settle(&mut health, &rules, probe(6, OutcomeClass::Failure(FailureKind::Dns)));
    assert_eq!(events, [Event::Reopened { until: at(16) }]);
    assert_eq!(health.breaker.cooldown, Duration::from_secs(10));

    health.probe(at(46));
    assert_eq!(health.admit(&rules, at(46)), Admission::Probe, "the probe's lease ran out");
    health.probe(at(76));
    assert_eq!(settle(&mut health, &rules, probe(47, OK)), [Event::Closed]);
    assert_eq!(health.breaker, Breaker::default());
    assert_eq!(health.admit(&rules, at(47)), Admission::Go { in_flight_max: 4, drain: true });
}

#[test]
fn cooldowns_double_up_to_their_maximum_and_jitter_only_shortens() {
    let rules = rules(1);
    let mut health = opened(&rules);
    let mut expected = Duration::from_secs(5);
    for round in 0..40 {
        health.probe(at(1_000));
        let seen = probe(0, FAILED);
        let roll = if round % 2 == 0 { u64::MAX } else { u64::MAX / 2 };
        let events = health.settle(&rules, &seen, roll);
        expected = (expected * 2).min(Duration::from_secs(3_600));
        assert_eq!(health.breaker.cooldown, expected, "remembered without jitter");
        let [Event::Reopened { until }] = events[..] else { panic!("{events:?}") };
        let wait = until.since(at(0));
        assert!(wait >= expected * 4 / 5 && wait <= expected, "{wait:?} of {expected:?}");
    }
}

#[test]
fn late_results_do_not_keep_an_open_breaker_open_but_a_success_closes_it() {
    let rules = rules(3);
    let mut health = opened(&rules);
    let before = health.breaker;
    assert_eq!(settle(&mut health, &rules, seen(3, FAILED)), []);
    assert_eq!((health.breaker, health.last_failure_at), (before, Some(at(3))));

    health.probe(at(35));
    assert_eq!(settle(&mut health, &rules, seen(6, FAILED)), []);
    assert_eq!(health.admit(&rules, at(7)), Admission::Wait { until: at(35) });
    assert_eq!(settle(&mut health, &rules, seen(7, OK)), [Event::Closed]);
}

#[test]
fn the_probe_of_an_earlier_opening_does_not_free_the_slot_of_a_later_one() {
    let rules = rules(3);
    let mut health = opened(&rules);
    health.probe(at(35));
    assert!(health.awaits(at(35)));
    settle(&mut health, &rules, seen(6, OK));
    for _ in 0..3 {
        settle(&mut health, &rules, seen(7, FAILED));
    }
    health.probe(at(42));
    assert!(!health.awaits(at(35)) && health.awaits(at(42)));
    let late = Observation { probe: health.awaits(at(35)), ..seen(13, FAILED) };
    assert_eq!(settle(&mut health, &rules, late), []);
    assert_eq!(health.admit(&rules, at(14)), Admission::Wait { until: at(42) });
}

#[test]
fn a_slow_endpoint_has_half_the_threshold() {
    for (threshold, halved) in [(10, 5), (5, 3), (4, 3), (2, 2), (0, 1)] {
        let rules = rules(threshold);
        let mut health = Health { p95_ms: 5_001, ..Health::default() };
        for failure in 1..=halved {
            let events = settle(&mut health, &rules, seen(0, FAILED));
            assert_eq!(events.is_empty(), failure < halved, "{threshold}: {failure}");
        }
    }
}

#[test]
fn f063_429_neither_adds_nor_resets() {
    let rules = rules(5);
    let mut health = Health::default();
    for _ in 0..4 {
        assert_eq!(settle(&mut health, &rules, seen(0, FAILED)), []);
    }
    let slow_down = asking(30, seen(1, OutcomeClass::Status(429)));
    assert_eq!(settle(&mut health, &rules, slow_down), []);
    assert_eq!(health.breaker.consecutive_failures, 4);
    assert_eq!(health.admit(&rules, at(30)), Admission::Wait { until: at(31) });
    assert!(matches!(health.admit(&rules, at(31)), Admission::Go { .. }));
    let events = settle(&mut health, &rules, seen(31, FAILED));
    assert_eq!(events, [Event::Opened { until: at(36) }]);
}

#[test]
fn f063_a_probe_answered_429_frees_its_slot() {
    let rules = rules(3);
    let mut health = opened(&rules);
    health.probe(at(35));
    let slow_down = asking(30, probe(6, OutcomeClass::Status(429)));
    assert_eq!(settle(&mut health, &rules, slow_down), []);
    assert_eq!(health.breaker.cooldown, Duration::from_secs(5), "not doubled");
    assert_eq!(health.admit(&rules, at(35)), Admission::Wait { until: at(36) });
    assert_eq!(health.admit(&rules, at(36)), Admission::Probe);

    health.probe(at(66));
    settle(&mut health, &rules, probe(37, OutcomeClass::Status(429)));
    assert_eq!(health.admit(&rules, at(41)), Admission::Wait { until: at(42) });
    assert_eq!(health.admit(&rules, at(42)), Admission::Probe);
}

#[test]
fn a_neutral_probe_is_followed_by_another_after_the_first_cooldown() {
    let rules = rules(3);
    for class in [OutcomeClass::Status(400), OutcomeClass::Failure(FailureKind::Local)] {
        let mut health = opened(&rules);
        health.breaker.cooldown = Duration::from_secs(3_600);
        health.probe(at(35));
        assert_eq!(settle(&mut health, &rules, probe(6, class)), []);
        assert_eq!(health.admit(&rules, at(11)), Admission::Probe, "{class}");
        assert_eq!(health.breaker.consecutive_failures, 3);
    }
}

#[test]
fn a_503_that_names_a_time_is_a_failure_and_a_pause() {
    let rules = rules(3);
    let mut health = Health::default();
    settle(&mut health, &rules, asking(20, seen(0, OutcomeClass::Status(503))));
    assert_eq!(health.breaker.consecutive_failures, 1);
    assert_eq!(health.admit(&rules, at(19)), Admission::Wait { until: at(20) });
    // A shorter wait does not cut a longer one, and other statuses name no pause.
    settle(&mut health, &rules, asking(1, seen(1, OutcomeClass::Status(429))));
    settle(&mut health, &rules, asking(99, seen(1, FAILED)));
    assert_eq!(health.admit(&rules, at(19)), Admission::Wait { until: at(20) });
    settle(&mut health, &rules, seen(20, OK));
    assert_eq!(health.quiet_until, None);
}

#[test]
fn the_ramp_doubles_while_answers_are_good_and_fast_and_halves_on_trouble() {
    let rules = LaneRules { in_flight_max: 20, ..rules(3) };
    let mut health = opened(&rules);
    settle(&mut health, &rules, seen(5, OK));
    let mut widths = Vec::new();
    for _ in 0..4 {
        settle(&mut health, &rules, seen(6, OK));
        widths.push(health.ramp);
    }
    assert_eq!(widths, [Some(8), Some(16), Some(20), Some(20)]);
    let slow = Observation { latency: Duration::from_secs(3), ..seen(7, OK) };
    health.ramp = Some(8);
    settle(&mut health, &rules, slow);
    assert_eq!(health.ramp, Some(8));
    settle(&mut health, &rules, seen(8, FAILED));
    assert_eq!(health.ramp, Some(4));
    settle(&mut health, &rules, seen(8, OutcomeClass::Status(429)));
    assert_eq!(health.ramp, Some(4), "429 says nothing about health");
    settle(&mut health, &rules, seen(8, FAILED));
    settle(&mut health, &rules, seen(8, FAILED));
    assert_eq!(health.ramp, None, "the breaker opened");
}

#[test]
fn a_streak_that_ends_before_the_breaker_opens_starts_a_ramp_and_a_single_failure_none() {
    let rules = rules(10);
    let mut health = Health::default();
    settle(&mut health, &rules, seen(0, FAILED));
    settle(&mut health, &rules, seen(1, OK));
    assert_eq!(health.ramp, None);
    for _ in 0..3 {
        settle(&mut health, &rules, seen(2, FAILED));
    }
    assert_eq!(settle(&mut health, &rules, seen(3, OK)), []);
    assert_eq!(health.admit(&rules, at(3)), Admission::Go { in_flight_max: 4, drain: true });
}

#[test]
fn f065_two_failures_days_apart_do_not_disable() {
    let rules = rules(1_000);
    let mut health = Health::default();
    assert_eq!(settle(&mut health, &rules, seen(0, FAILED)), []);
    assert_eq!(settle(&mut health, &rules, seen(6 * DAY, FAILED)), []);
    assert_eq!(health.failing_since, Some(at(6 * DAY)));
}

#[test]
fn f065_daily_failures_disable_after_warnings() {
    let rules = rules(1_000);
    let mut health = Health::default();
    let events: Vec<_> = (0..=10)
        .flat_map(|half_days| settle(&mut health, &rules, seen(half_days * DAY / 2, FAILED)))
        .collect();
    let since = at(0);
    let expected = [
        Event::Failing { percent: 50, since },
        Event::Failing { percent: 75, since },
        Event::Failing { percent: 90, since },
        Event::Exhausted { since },
    ];
    assert_eq!(events, expected);
    // Once enabled again, it has the whole time before it.
    assert_eq!(settle(&mut health, &rules, seen(5 * DAY + 1, FAILED)), []);
}

#[test]
fn f065_a_single_success_resets_the_clock() {
    let rules = rules(1_000);
    let mut health = Health::default();
    for day in 0..=6 {
        let events = settle(&mut health, &rules, seen(day * DAY, FAILED));
        assert!(!events.iter().any(|event| matches!(event, Event::Exhausted { .. })), "{day}");
        if day == 3 {
            settle(&mut health, &rules, seen(day * DAY + 1, OK));
        }
    }
    assert_eq!(health.failing_since, Some(at(4 * DAY)));
}

#[test]
fn f065_the_silence_of_an_open_breaker_does_not_stop_the_clock() {
    let rules = LaneRules { disable_after: Some(Duration::from_secs(7_200)), ..rules(1) };
    let mut health = opened(&rules);
    let mut events = Vec::new();
    for _ in 0..20 {
        let Position::Open { until } = health.breaker.position else { panic!("not open") };
        health.probe(until.after(Duration::from_secs(30)));
        events.extend(health.settle(&rules, &Observation { at: until, ..probe(0, FAILED) }, 0));
    }
    assert!(events.contains(&Event::Exhausted { since: at(0) }), "{events:?}");
}

#[test]
fn f064_ten_failures_within_a_minute_never_disable() {
    let rules = rules(10);
    let mut health = Health::default();
    let events: Vec<_> =
        (0..10).flat_map(|n| settle(&mut health, &rules, seen(n * 6, FAILED))).collect();
    assert_eq!(events, [Event::Opened { until: at(59) }]);
}

#[test]
fn gone_is_told_with_what_became_of_the_breaker() {
    let mut health = Health::default();
    let gone = seen(0, OutcomeClass::Status(410));
    assert_eq!(settle(&mut health, &rules(2), gone), [Event::Gone]);
    let events = settle(&mut health, &rules(2), gone);
    assert_eq!(events, [Event::Opened { until: at(5) }, Event::Gone]);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Pass {
        millis: u64,
    },
    /// A process asks, and sends what it may.
    Admit,
    /// One of the attempts that are out comes back.
    Answer {
        which: usize,
        class: OutcomeClass,
        retry_after_secs: Option<u64>,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let class = prop_oneof![
        3 => Just(FAILED),
        1 => Just(OK),
        1 => Just(OutcomeClass::Status(429)),
        1 => Just(OutcomeClass::Status(400)),
        1 => Just(OutcomeClass::Status(503)),
        1 => Just(OutcomeClass::Failure(FailureKind::Local)),
        1 => Just(OutcomeClass::Failure(FailureKind::Timeout)),
    ];
    let answer = (any::<usize>(), class, prop::option::of(0..40_u64)).prop_map(
        |(which, class, retry_after_secs)| Step::Answer { which, class, retry_after_secs },
    );
    let step = prop_oneof![
        1 => (0..8_000_u64).prop_map(|millis| Step::Pass { millis }),
        2 => Just(Step::Admit),
        2 => answer,
    ];
    prop::collection::vec(step, 0..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Several processes share one health row. An attempt is out until it is answered or its lease
    /// runs out; the store refuses what comes later. Between two moments at which the breaker was
    /// closed, no two probes are ever out together, though one of before may still be.
    #[test]
    fn no_two_probes_are_out_together(
        steps in steps(), threshold in 1..5_u32, lease_secs in 1..20_u64, rolls: u64,
    ) {
        let rules = rules(threshold);
        let mut health = Health::default();
        let mut now = START;
        // Lease, whether it went as a probe, and whether the breaker did not close since.
        let mut out: Vec<(Timestamp, bool, bool)> = Vec::new();
        let mut roll = rolls;
        for step in steps {
            out.retain(|(lease_until, ..)| now < *lease_until);
            roll = roll.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            match step {
                Step::Pass { millis } => now = now.after(Duration::from_millis(millis)),
                Step::Admit => match health.admit(&rules, now) {
                    Admission::Go { in_flight_max, .. } => {
                        prop_assert!((1..=rules.in_flight_max).contains(&in_flight_max));
                        prop_assert_eq!(health.breaker.position, Position::Closed);
                        out.push((now.after(Duration::from_secs(lease_secs)), false, false));
                    }
                    Admission::Probe => {
                        prop_assert!(!out.iter().any(|(.., current)| *current), "one is out");
                        prop_assert!(health.quiet_until.is_none_or(|until| until <= now));
                        let lease_until = now.after(Duration::from_secs(lease_secs));
                        health.probe(lease_until);
                        out.push((lease_until, true, true));
                    }
                    Admission::Wait { until } => {
                        prop_assert!(until > now);
                        prop_assert!(until.since(now) <= DELAY_MAX);
                    }
                },
                Step::Answer { which, class, retry_after_secs } => {
                    if out.is_empty() {
                        continue;
                    }
                    let (lease_until, probe, _) = out.swap_remove(which % out.len());
                    let probe = probe && health.awaits(lease_until);
                    let retry_after = retry_after_secs.map(Duration::from_secs);
                    let latency = within(Duration::from_secs(4), roll);
                    let seen = Observation { at: now, class, retry_after, latency, probe };
                    let events = health.settle(&rules, &seen, roll);
                    prop_assert!(events.len() <= 2);
                    if events.contains(&Event::Closed) {
                        out.iter_mut().for_each(|(.., current)| *current = false);
                    }
                }
            }
        }
    }

    #[test]
    fn no_settings_or_times_however_odd_overflow(
        threshold: u32, cooldown_ms: u64, cooldown_max_ms: u64, disable_after_ms: Option<u64>,
        in_flight_max: u32, seen in prop::collection::vec((any::<i64>(), 0..1_000_u16), 1..30),
        wait_ms: u64, roll: u64,
    ) {
        let rules = LaneRules {
            breaker: BreakerPolicy {
                failure_threshold: threshold % 4,
                cooldown: Duration::from_millis(cooldown_ms),
                cooldown_max: Duration::from_millis(cooldown_max_ms),
            },
            disable_after: disable_after_ms.map(Duration::from_millis),
            in_flight_max,
        };
        let mut health = Health::default();
        for (micros, status) in seen {
            let at = Timestamp::from_micros(micros);
            if health.admit(&rules, at) == Admission::Probe {
                health.probe(at.after(Duration::from_secs(30)));
            }
            let class = if status < 300 { OK } else { OutcomeClass::Status(status) };
            let retry_after = Some(Duration::from_millis(wait_ms));
            let probe = status % 2 == 0;
            let seen = Observation { at, class, retry_after, latency: Duration::MAX, probe };
            prop_assert!(health.settle(&rules, &seen, roll).len() <= 2);
            prop_assert!(health.breaker.cooldown <= rules.breaker.cooldown_max);
        }
    }
}
