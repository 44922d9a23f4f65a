//! This process's latency sketches: the current window of each, flushed with the records.
//!
//! A crash loses at most the samples since the last flush, a second's worth; the attempts
//! themselves are the truth and are never lost.

use posthaste_core::delivery::{Record, Verdict};
use posthaste_core::id::EndpointId;
use posthaste_core::latency::Sketch;
use posthaste_core::outcome::{Answer, FailureKind};
use posthaste_core::time::Timestamp;
use posthaste_store::outbox::{Scope, WindowSketch};
use std::collections::BTreeMap;
use std::time::Duration;

const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// Length of a window of an endpoint's latency ...
const HOUR: Duration = Duration::from_secs(3_600);
/// ... and of the delivery times over all endpoints.
const MINUTE: Duration = Duration::from_secs(60);

/// The sketches of windows that are not over, or have not been written.
#[derive(Default)]
pub struct Sketches {
    windows: BTreeMap<(Scope, Timestamp), Window>,
    /// The endpoint's hour before the current one, so that the P95 does not start anew with every
    /// hour.
    last_hour: BTreeMap<EndpointId, (Timestamp, Sketch)>,
    flushed_at: Timestamp,
    is_dirty: bool,
}

#[derive(Default)]
struct Window {
    sketch: Sketch,
    is_dirty: bool,
}

impl Sketches {
    /// Every attempt that the receiver answered counts, and every one that it kept waiting until
    /// the timeout; what never reached it says nothing about how fast it is.
    pub fn add(&mut self, record: &Record) {
        let answered = match &record.outcome.answer {
            Answer::Response(_) => true,
            Answer::Failure(failure) => failure.kind == FailureKind::Timeout,
        };
        if answered {
            let scope = Scope::EndpointLatency(record.delivery.key.endpoint_id);
            self.sample(scope, record.started_at, HOUR, record.outcome.timing.total);
        }
        if record.verdict == Verdict::Delivered {
            let took = record.ended_at.since(record.delivery.accepted_at);
            self.sample(Scope::DeliveryTime, record.ended_at, MINUTE, took);
        }
    }

    /// How long until something must be flushed.
    pub fn flush_in(&self, now: Timestamp) -> Duration {
        if self.is_dirty { FLUSH_EVERY.saturating_sub(now.since(self.flushed_at)) } else { HOUR }
    }

    /// What is to be written now: nothing, unless the last flush is long enough ago.
    pub fn due(&mut self, now: Timestamp) -> Vec<WindowSketch> {
        if self.is_dirty && now.since(self.flushed_at) >= FLUSH_EVERY {
            self.all(now)
        } else {
            Vec::new()
        }
    }

    /// Everything that changed since it was last written.
    pub fn all(&mut self, now: Timestamp) -> Vec<WindowSketch> {
        self.flushed_at = now;
        self.is_dirty = false;
        let mut changed = Vec::new();
        for ((scope, start), window) in &mut self.windows {
            if std::mem::take(&mut window.is_dirty) {
                let p95_ms = match scope {
                    Scope::EndpointLatency(id) => p95_ms(&window.sketch, self.last_hour.get(id)),
                    Scope::DeliveryTime => 0,
                };
                let sketch = window.sketch.to_bytes();
                changed.push(WindowSketch { scope: *scope, start: *start, sketch, p95_ms });
            }
        }
        self.retire(now);
        changed
    }

    fn sample(&mut self, scope: Scope, at: Timestamp, length: Duration, sample: Duration) {
        let window = self.windows.entry((scope, start_of(at, length))).or_default();
        window.sketch.add(sample);
        window.is_dirty = true;
        self.is_dirty = true;
    }

    /// Drops windows that ended long enough ago for late samples to be in.
    fn retire(&mut self, now: Timestamp) {
        let hour = start_of(now.before(2 * MINUTE), HOUR);
        let minute = start_of(now.before(2 * MINUTE), MINUTE);
        let ended = self.windows.extract_if(.., |(scope, start), window| {
            let oldest = match scope {
                Scope::EndpointLatency(_) => hour,
                Scope::DeliveryTime => minute,
            };
            !window.is_dirty && *start < oldest
        });
        for ((scope, start), window) in ended {
            if let Scope::EndpointLatency(id) = scope {
                self.last_hour.insert(id, (start, window.sketch));
            }
        }
        self.last_hour.retain(|_, (start, _)| now.since(*start) < 3 * HOUR);
    }
}

fn p95_ms(current: &Sketch, last: Option<&(Timestamp, Sketch)>) -> u32 {
    let mut merged = current.clone();
    if let Some((_, last)) = last {
        merged.merge(last);
    }
    let p95 = merged.quantile(0.95).unwrap_or_default();
    u32::try_from(p95.as_millis()).unwrap_or(u32::MAX)
}

fn start_of(at: Timestamp, length: Duration) -> Timestamp {
    let length = i64::try_from(length.as_micros()).unwrap_or(i64::MAX);
    Timestamp::from_micros(at.as_micros().div_euclid(length) * length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sketches_with(samples: &[(i64, u64)]) -> Sketches {
        let mut sketches = Sketches::default();
        let scope = Scope::EndpointLatency(EndpointId::from_bytes([1; 16]));
        for (secs, ms) in samples {
            let at = Timestamp::from_secs(*secs);
            sketches.sample(scope, at, HOUR, Duration::from_millis(*ms));
        }
        sketches
    }

    #[test]
    fn a_window_is_written_once_per_change() {
        let mut sketches = sketches_with(&[(10, 5), (20, 5)]);
        assert_eq!(sketches.due(Timestamp::from_secs(21)).len(), 1);
        assert_eq!(sketches.due(Timestamp::from_secs(30)), []);
    }

    #[test]
    fn a_late_sample_still_finds_its_hour() {
        let mut sketches = sketches_with(&[(3_599, 5)]);
        sketches.all(Timestamp::from_secs(3_601));
        let scope = Scope::EndpointLatency(EndpointId::from_bytes([1; 16]));
        sketches.sample(scope, Timestamp::from_secs(3_599), HOUR, Duration::from_millis(5));
        let written = sketches.all(Timestamp::from_secs(3_602));
        let sketch = Sketch::from_bytes(&written[0].sketch).unwrap();
        assert_eq!(sketch.count(), 2);
    }

    #[test]
    fn the_p95_looks_back_over_the_turn_of_the_hour() {
        let slow: Vec<_> = (0..100).map(|_| (10, 9_000)).collect();
        let mut sketches = sketches_with(&slow);
        sketches.all(Timestamp::from_secs(20));
        sketches.all(Timestamp::from_secs(4_000));
        let scope = Scope::EndpointLatency(EndpointId::from_bytes([1; 16]));
        sketches.sample(scope, Timestamp::from_secs(4_001), HOUR, Duration::from_millis(1));
        let written = sketches.all(Timestamp::from_secs(4_002));
        assert!(written[0].p95_ms > 8_000, "{}", written[0].p95_ms);
    }
}
