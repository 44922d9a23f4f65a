use super::*;
use proptest::prelude::*;

fn limit(count: u32, period_ms: u32, burst: u32) -> RateLimit {
    RateLimit { count, period_ms, burst }
}

#[test]
fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
    let limit = limit(10, 1_000, 3);
    let mut state = LimiterState::default();
    let now = Timestamp::from_secs(100);
    let granted = state.take(limit, 5, now);
    assert_eq!(granted, Granted { count: 3, retry_at: now.after(Duration::from_millis(100)) });
    assert_eq!(state.take(limit, 1, granted.retry_at.before(Duration::from_micros(1))).count, 0);
    assert_eq!(state.take(limit, 5, granted.retry_at).count, 1);
}

#[test]
fn what_is_put_back_can_be_taken_again_and_no_more() {
    let limit = limit(7, 1_000, 5);
    let mut state = LimiterState::default();
    let now = Timestamp::from_secs(100);
    assert_eq!(state.take(limit, 5, now).count, 5);
    state.put_back(limit, 2);
    assert!((1..=2).contains(&state.take(limit, 9, now).count));
    assert_eq!(state.take(limit, 9, now).count, 0);
}

#[test]
fn a_slower_limit_of_before_does_not_lock_the_lane() {
    let mut state = LimiterState::default();
    let now = Timestamp::from_secs(100_000);
    assert_eq!(state.take(limit(1, 86_400_000, 1), 1, now).count, 1);
    let granted = state.take(limit(10, 1_000, 1), 1, now);
    assert_eq!(granted.count, 0);
    assert!(granted.retry_at <= now.after(Duration::from_secs(1)));
}

#[test]
fn per_second_is_nearly_even() {
    assert_eq!(RateLimit::per_second(0), limit(1, 1_000, 1));
    assert_eq!(RateLimit::per_second(10), limit(10, 1_000, 1));
    assert_eq!(RateLimit::per_second(100), limit(100, 1_000, 5));
    for rate in [0, 1, 20, u16::MAX] {
        assert!(RateLimit::per_second(rate).checked().is_ok());
    }
}

#[test]
fn a_limit_out_of_bounds_is_refused_with_its_field() {
    let read = |json| serde_json::from_str::<RateLimit>(json).map_err(|error| error.to_string());
    assert_eq!(read(r#"{"count":40}"#), Ok(limit(40, 1_000, 2)));
    assert_eq!(read(r#"{"count":1,"periodMs":60000,"burst":5}"#), Ok(limit(1, 60_000, 5)));
    for (json, field) in [
        (r#"{"count":0}"#, "count"),
        (r#"{"count":1001,"periodMs":1}"#, "count"),
        (r#"{"count":1,"periodMs":0}"#, "periodMs"),
        (r#"{"count":1,"periodMs":86400001}"#, "periodMs"),
        (r#"{"count":1,"burst":0}"#, "burst"),
        (r#"{"count":1,"burst":100001}"#, "burst"),
        (r#"{"count":1,"rate":1}"#, "rate"),
    ] {
        assert!(read(json).is_err_and(|error| error.contains(field)), "{json}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever is asked for at whatever times, and partly put back: count what was used in every
    /// window that begins and ends with a grant.
    #[test]
    fn no_window_exceeds_rate_and_burst(
        count in 1..2_000_u32, period_ms in 1..100_000_u32, burst in 1..200_u32,
        asked in prop::collection::vec((0..300_000_u64, 1..50_u32, 0..3_u32), 1..60),
    ) {
        let limit = limit(count.min(period_ms.saturating_mul(1_000)), period_ms, burst);
        let mut state = LimiterState::default();
        let mut now = Timestamp::from_secs(1_700_000_000);
        let mut used = Vec::new();
        for (pause_micros, want, unused) in asked {
            now = now.after(Duration::from_micros(pause_micros));
            let granted = state.take(limit, want, now);
            prop_assert!(granted.count <= want);
            if granted.count < want {
                prop_assert!(granted.retry_at > now);
                let mut later = state;
                prop_assert!(later.take(limit, 1, granted.retry_at).count == 1);
            }
            let unused = unused.min(granted.count);
            state.put_back(limit, unused);
            used.push((now, f64::from(granted.count - unused)));
        }
        let rate_per_micro = f64::from(limit.count) / (f64::from(period_ms) * 1_000.0);
        for (first, (from, _)) in used.iter().enumerate() {
            let mut sum = 0.0;
            for (to, tokens) in &used[first..] {
                sum += tokens;
                let window_micros = to.since(*from).as_micros() as f64;
                let allowed = f64::from(burst) + rate_per_micro * window_micros + 1.0;
                prop_assert!(sum <= allowed, "{} > {} in {} us", sum, allowed, window_micros);
            }
        }
    }

    /// A steady asker gets its rate: a limiter that grants nothing would pass the test above.
    #[test]
    fn whoever_comes_when_told_gets_the_rate(count in 1..1_000_u32, burst in 1..50_u32) {
        let limit = limit(count, 1_000, burst);
        let mut state = LimiterState::default();
        let start = Timestamp::from_secs(1_700_000_000);
        let (mut now, mut granted) = (start, 0);
        for _ in 0..2 * (burst + 2 * count) {
            if granted == burst + 2 * count {
                break;
            }
            let got = state.take(limit, 1, now);
            granted += got.count;
            now = got.retry_at;
        }
        prop_assert_eq!(granted, burst + 2 * count, "whoever comes when told gets one");
        // It ended at the time for the next one; each was rounded up by a microsecond at most.
        let next = Duration::from_secs_f64(2.0 + 1.0 / f64::from(count));
        prop_assert!(now.since(start) <= next + Duration::from_millis(3));
    }

    #[test]
    fn no_limit_or_state_however_broken_overflows(
        count: u32, period_ms: u32, burst: u32, next_at: i64, now: i64, want: u32, back: u32,
    ) {
        let limit = limit(count, period_ms, burst);
        let mut state = LimiterState { next_at: Timestamp::from_micros(next_at) };
        let granted = state.take(limit, want, Timestamp::from_micros(now));
        prop_assert!(granted.count <= want);
        prop_assert!(granted.retry_at >= Timestamp::from_micros(now));
        state.put_back(limit, back);
    }
}
