use super::*;
use crate::outcome::{Answer, Failure, FailureKind, Phase, Response, Timing};
use proptest::prelude::*;

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

fn answer(status: u16, retry_after: Option<&str>) -> Outcome {
    let retry_after = retry_after.map(str::to_owned);
    let response = Response { status, retry_after, ..Response::default() };
    Outcome { answer: Answer::Response(response), timing: Timing::default(), remote: None }
}

fn failure(kind: FailureKind) -> Outcome {
    let failure = Failure { kind, phase: Phase::Connect, detail: String::new() };
    Outcome { answer: Answer::Failure(failure), timing: Timing::default(), remote: None }
}

fn planned(policy: &RetryPolicy, plan_attempt: u32) -> Judged<'_> {
    Judged { policy, final_statuses: &[], plan_attempt, manual: false, planned_at: None }
}

fn schedule(delays_ms: &[u64]) -> RetryPolicy {
    RetryPolicy::Schedule { delays_ms: delays_ms.to_vec(), jitter: 0.0 }
}

#[test]
fn f056_nonsense_in_retry_after_is_ignored() {
    for text in [
        "-5",
        "+3",
        "120junk",
        "",
        " ",
        "Infinity",
        "NaN",
        "1e5",
        "0x10",
        ".5",
        "5.",
        "1.2.3",
        "1,5",
        "10, 3600",
        "١٢",
        "Wed",
        "Thu, 01 Jan 1970",
        "Sun, 99 Nov 9999 99:99:99 GMT",
    ] {
        assert_eq!(retry_after(text, NOW), None, "{text:?}");
    }
    let secs = |text| retry_after(text, NOW).map(|wait| wait.as_secs());
    assert_eq!(secs("0"), Some(0));
    assert_eq!(secs("120"), Some(120));
    assert_eq!(secs(" 120\t"), Some(120));
    assert_eq!(secs("1.5"), Some(2));
    assert_eq!(secs("0.65"), Some(1));
    assert_eq!(secs("2.000"), Some(2));
    let day = Some(DELAY_MAX.as_secs());
    assert_eq!(secs("99999999999999999999"), day);
    assert_eq!(secs("99999999999999999999.9"), day);
    assert_eq!(secs("Fri, 31 Dec 9999 23:59:59 GMT"), day);
}

#[test]
fn f056_every_form_of_date_is_read_and_the_past_asks_for_nothing() {
    // NOW is 2023-11-14 22:13:20.
    for text in [
        "Tue, 14 Nov 2023 22:14:20 GMT",
        "Tuesday, 14-Nov-23 22:14:20 GMT",
        "Tue Nov 14 22:14:20 2023",
    ] {
        assert_eq!(retry_after(text, NOW), Some(Duration::from_secs(60)), "{text:?}");
    }
    let past = retry_after("Tue, 14 Nov 2023 22:12:20 GMT", NOW);
    assert_eq!(past, Some(Duration::ZERO));
}

#[test]
fn f056_retry_after_raises_the_wait_and_never_lowers_it() {
    let policy = schedule(&[60_000]);
    let wait = |text| match judge(&answer(503, Some(text)), planned(&policy, 1), NOW, 0) {
        Verdict::RetryAt(at) => at.since(NOW).as_secs(),
        other => panic!("{other:?}"),
    };
    assert_eq!(wait("0"), 60);
    assert_eq!(wait("1"), 60);
    assert_eq!(wait("-5"), 60);
    assert_eq!(wait("61"), 61);
    assert_eq!(wait("99999999999999999999"), DELAY_MAX.as_secs());
}

#[test]
fn f060_everything_is_retried_but_410() {
    let policy = RetryPolicy::default();
    for status in [
        300, 302, 400, 401, 403, 404, 408, 409, 413, 421, 425, 429, 500, 501, 502, 503, 504, 507,
        520, 101, 999,
    ] {
        let verdict = judge(&answer(status, None), planned(&policy, 1), NOW, 0);
        assert_eq!(verdict, Verdict::RetryAt(NOW), "{status}");
    }
    for kind in [
        FailureKind::Dns,
        FailureKind::Connect,
        FailureKind::Tls,
        FailureKind::Timeout,
        FailureKind::Closed,
        FailureKind::Protocol,
        FailureKind::Blocked,
        FailureKind::Local,
    ] {
        let verdict = judge(&failure(kind), planned(&policy, 1), NOW, 0);
        assert_eq!(verdict, Verdict::RetryAt(NOW), "{kind:?}");
    }
    let gone = judge(&answer(410, Some("5")), planned(&policy, 1), NOW, 0);
    assert_eq!(gone, Verdict::Dead(Cause::Gone));
    assert_eq!(judge(&answer(204, None), planned(&policy, 99), NOW, 0), Verdict::Delivered);
}

#[test]
fn f060_an_owner_may_make_further_statuses_final() {
    let policy = RetryPolicy::default();
    let by = Judged { final_statuses: &[400, 422], ..planned(&policy, 1) };
    let dead = Verdict::Dead(Cause::Final(OutcomeClass::Status(422)));
    assert_eq!(judge(&answer(422, None), by, NOW, 0), dead);
    assert_eq!(judge(&answer(404, None), by, NOW, 0), Verdict::RetryAt(NOW));
}

#[test]
fn f057_a_plan_of_three_retries_ends_after_four_attempts() {
    let policy = schedule(&[1_000, 2_000, 3_000]);
    for attempt in 1..=3 {
        let verdict = judge(&answer(403, None), planned(&policy, attempt), NOW, 0);
        assert_eq!(verdict, Verdict::RetryAt(NOW.after(Duration::from_secs(attempt.into()))));
    }
    let dead = Verdict::Dead(Cause::Exhausted(OutcomeClass::Status(403)));
    for attempt in [4, 5, u32::MAX] {
        assert_eq!(judge(&answer(403, None), planned(&policy, attempt), NOW, 0), dead);
    }
    assert_eq!(judge(&answer(403, None), planned(&schedule(&[]), 1), NOW, 0), dead);
}

#[test]
fn a_manual_attempt_leaves_the_plan_as_it_was() {
    let policy = RetryPolicy::default();
    let by = |planned_at| Judged { manual: true, planned_at, ..planned(&policy, 1) };
    let later = NOW.after(Duration::from_secs(1_800));
    let earlier = NOW.before(Duration::from_secs(5));
    assert_eq!(judge(&answer(500, None), by(Some(later)), NOW, 0), Verdict::RetryAt(later));
    assert_eq!(judge(&answer(500, None), by(Some(earlier)), NOW, 0), Verdict::RetryAt(NOW));
    let dead = Verdict::Dead(Cause::Exhausted(OutcomeClass::Status(500)));
    assert_eq!(judge(&answer(500, None), by(None), NOW, 0), dead);
    assert_eq!(judge(&answer(200, None), by(Some(later)), NOW, 0), Verdict::Delivered);
}

#[test]
fn presets_are_within_bounds_and_come_back_from_json() {
    for name in RetryPolicy::PRESETS {
        let policy = RetryPolicy::preset(name).unwrap();
        assert_eq!(policy.clone().checked().as_ref(), Ok(&policy), "{name}");
        let json = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<RetryPolicy>(&json).unwrap(), policy, "{json}");
    }
    assert_eq!(RetryPolicy::preset("never"), None);
    assert_eq!(RetryPolicy::preset("day"), Some(RetryPolicy::default()));
}

#[test]
fn presets_wait_as_long_as_they_say() {
    let waits = |name, roll| {
        let policy = RetryPolicy::preset(name).unwrap();
        let waits = (1..).map_while(move |attempt| policy.delay(attempt, roll));
        waits.map(|wait| wait.as_secs()).collect::<Vec<_>>()
    };
    assert_eq!(waits("short", u64::MAX), [30, 60, 120, 240]);
    assert_eq!(waits("short", 0), [0; 4]);
    let day = [30, 60, 120, 240, 480, 960, 1_920, 3_840, 7_680, 15_360, 30_720, 43_200, 43_200];
    assert_eq!(waits("day", u64::MAX), day);
    assert_eq!(waits("email", 1 << 63), [60, 300, 1_800, 7_200, 43_200]);
    assert_eq!(waits("email", u64::MAX), [72, 360, 2_160, 8_640, 51_840]);
    assert_eq!(waits("email", 0), [48, 240, 1_440, 5_760, 34_560]);
}

#[test]
fn a_policy_out_of_bounds_is_refused_with_its_field() {
    for (json, field) in [
        (r#"{"kind":"schedule","delaysMs":[86400001]}"#, "delaysMs"),
        (r#"{"kind":"schedule","delaysMs":[1],"jitter":1.1}"#, "jitter"),
        (r#"{"kind":"schedule","delaysMs":[1],"jitter":-0.1}"#, "jitter"),
        (r#"{"kind":"full_jitter","baseMs":1,"factor":0.5,"capMs":1,"attemptsMax":1}"#, "factor"),
        (r#"{"kind":"full_jitter","baseMs":1,"factor":11,"capMs":1,"attemptsMax":1}"#, "factor"),
        (r#"{"kind":"full_jitter","baseMs":1,"factor":2,"capMs":1,"attemptsMax":0}"#, "attempts"),
        (r#"{"kind":"full_jitter","baseMs":1,"factor":2,"capMs":1,"attemptsMax":101}"#, "attempts"),
        (r#"{"kind":"full_jitter","baseMs":1,"factor":2,"capMs":86400001,"attemptsMax":1}"#, "cap"),
        (r#"{"kind":"schedule","delaysMs":[1],"delay":1}"#, "delay"),
        (r#"{"kind":"linear"}"#, "linear"),
    ] {
        let error = serde_json::from_str::<RetryPolicy>(json).unwrap_err().to_string();
        assert!(error.contains(field), "{json}: {error}");
    }
    let long = RetryPolicy::Schedule { delays_ms: vec![1; 100], jitter: 0.0 };
    assert_eq!(long.checked(), Err(RetryPolicyError::Attempts("delaysMs")));
    let odd = RetryPolicy::Schedule { delays_ms: vec![1], jitter: f64::NAN };
    assert_eq!(odd.checked(), Err(RetryPolicyError::Jitter));
}

proptest! {
    #[test]
    fn full_jitter_stays_within_its_bound(
        base_ms in 0..=86_400_000_u64, factor in 1.0..=10.0, cap_ms in 0..=86_400_000_u64,
        attempts_max in 1..=ATTEMPTS_MAX, attempt: u32, near in 0..8_u32, roll: u64,
    ) {
        let policy = RetryPolicy::FullJitter { base_ms, factor, cap_ms, attempts_max };
        for attempt in [attempt, near] {
            let Some(delay) = policy.delay(attempt, roll) else {
                prop_assert!(attempt >= attempts_max);
                continue;
            };
            prop_assert!(attempt < attempts_max);
            let grown = base_ms as f64 * factor.powf(f64::from(attempt.max(1) - 1));
            let bound_ms = grown.min(cap_ms as f64);
            prop_assert!(delay.as_secs_f64() * 1_000.0 <= bound_ms * (1.0 + 1e-9) + 0.001);
            let longest = policy.delay(attempt, u64::MAX).unwrap();
            prop_assert!(longest.as_secs_f64() * 1_000.0 >= bound_ms * (1.0 - 1e-9) - 0.001);
        }
    }

    #[test]
    fn a_schedule_stays_within_its_jitter(
        delays_ms in prop::collection::vec(0..=86_400_000_u64, 0..5), jitter in 0.0..=1.0,
        attempt in 0..8_u32, roll: u64,
    ) {
        let policy = RetryPolicy::Schedule { delays_ms: delays_ms.clone(), jitter };
        let planned = delays_ms.get(attempt.max(1) as usize - 1);
        prop_assert_eq!(policy.delay(attempt, roll).is_some(), planned.is_some());
        if let (Some(delay), Some(planned)) = (policy.delay(attempt, roll), planned) {
            let (delay, planned) = (delay.as_secs_f64() * 1_000.0, *planned as f64);
            prop_assert!(delay >= planned * (1.0 - jitter) - 0.001);
            prop_assert!(delay <= planned * (1.0 + jitter) + 0.001);
            prop_assert!(delay <= DELAY_MAX.as_secs_f64() * 1_000.0);
        }
    }

    #[test]
    fn no_policy_however_broken_overflows(
        base_ms: u64, factor: f64, cap_ms: u64, attempts_max: u32, jitter: f64,
        delays_ms in prop::collection::vec(any::<u64>(), 0..3), attempt: u32, roll: u64,
    ) {
        let full = RetryPolicy::FullJitter { base_ms, factor, cap_ms, attempts_max };
        let fixed = RetryPolicy::Schedule { delays_ms, jitter };
        for policy in [full, fixed] {
            for attempt in [attempt, 0, 1, 2, 99] {
                prop_assert!(policy.delay(attempt, roll).is_none_or(|delay| delay <= DELAY_MAX));
                let verdict = judge(&answer(500, None), planned(&policy, attempt), NOW, roll);
                if let Verdict::RetryAt(at) = verdict {
                    prop_assert!(at.since(NOW) <= DELAY_MAX && at >= NOW);
                }
            }
        }
    }

    #[test]
    fn hostile_retry_after_never_panics(text in ".{0,40}", now: i64) {
        if let Some(wait) = retry_after(&text, Timestamp::from_micros(now)) {
            prop_assert!(wait <= DELAY_MAX);
        }
    }

    #[test]
    fn near_dates_never_panic(
        text in "[A-Z][a-z]{2,8},? [0-9A-Za-z-]{1,9} [0-9:]{1,10} [0-9]{4} GMT",
    ) {
        if let Some(wait) = retry_after(&text, NOW) {
            prop_assert!(wait <= DELAY_MAX);
        }
    }
}
