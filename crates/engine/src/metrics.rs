//! The worker's figures, in the Prometheus text format. Labels are bounded: classes, never ids.

use crate::lanes::Occupancy;
use posthaste_core::delivery::{Record, Verdict};
use posthaste_core::lane::Event;
use posthaste_core::outcome::OutcomeClass;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Upper bounds of the attempt latency buckets, in milliseconds.
const BUCKETS_MS: [u64; 12] = [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 15_000];
const OUTCOMES: [&str; 14] = [
    "success",
    "status_1xx",
    "status_3xx",
    "status_4xx",
    "status_5xx",
    "dns",
    "connect",
    "tls",
    "timeout",
    "closed",
    "protocol",
    "blocked",
    "local",
    "status_other",
];

/// What this worker did since it started.
#[derive(Default)]
pub struct Metrics {
    outcomes: [AtomicU64; OUTCOMES.len()],
    delivered: AtomicU64,
    retried: AtomicU64,
    dead: AtomicU64,
    latency: [AtomicU64; BUCKETS_MS.len()],
    latency_count: AtomicU64,
    latency_sum_us: AtomicU64,
    claims: AtomicU64,
    claimed: AtomicU64,
    stale: AtomicU64,
    record_failures: AtomicU64,
    recovered: AtomicU64,
    breaker_opened: AtomicU64,
    breaker_closed: AtomicU64,
    endpoints_disabled: AtomicU64,
}

impl Metrics {
    pub fn attempted(&self, record: &Record) {
        let label = label(record.outcome.class());
        if let Some(index) = OUTCOMES.iter().position(|outcome| *outcome == label) {
            self.outcomes[index].fetch_add(1, Relaxed);
        }
        let verdict = match record.verdict {
            Verdict::Delivered => &self.delivered,
            Verdict::RetryAt(_) => &self.retried,
            Verdict::Dead(_) => &self.dead,
        };
        verdict.fetch_add(1, Relaxed);
        let total = record.outcome.timing.total;
        let index = BUCKETS_MS.iter().position(|bound| total.as_millis() <= u128::from(*bound));
        if let Some(index) = index {
            self.latency[index].fetch_add(1, Relaxed);
        }
        self.latency_count.fetch_add(1, Relaxed);
        let micros = u64::try_from(total.as_micros()).unwrap_or(u64::MAX);
        self.latency_sum_us.fetch_add(micros, Relaxed);
    }

    pub fn claimed(&self, count: usize) {
        self.claims.fetch_add(1, Relaxed);
        self.claimed.fetch_add(count as u64, Relaxed);
    }

    pub fn went_stale(&self) {
        self.stale.fetch_add(1, Relaxed);
    }

    pub fn record_failed(&self) {
        self.record_failures.fetch_add(1, Relaxed);
    }

    pub fn recovered(&self, deliveries: u64) {
        self.recovered.fetch_add(deliveries, Relaxed);
    }

    pub fn lane_event(&self, event: &Event) {
        match event {
            Event::Opened { .. } => self.breaker_opened.fetch_add(1, Relaxed),
            Event::Closed => self.breaker_closed.fetch_add(1, Relaxed),
            Event::Exhausted { .. } | Event::Gone => self.endpoints_disabled.fetch_add(1, Relaxed),
            Event::Reopened { .. } | Event::Failing { .. } => 0,
        };
    }

    pub fn render(&self, occupancy: Occupancy) -> String {
        let mut page = Page(String::with_capacity(4_096));
        page.head("posthaste_attempts_total", "counter", "Attempts by what came of them.");
        for (outcome, count) in OUTCOMES.iter().zip(&self.outcomes) {
            page.labelled("posthaste_attempts_total", "outcome", outcome, count.load(Relaxed));
        }
        page.head("posthaste_verdicts_total", "counter", "Attempts by what followed.");
        for (verdict, count) in
            [("delivered", &self.delivered), ("retry", &self.retried), ("dead_letter", &self.dead)]
        {
            page.labelled("posthaste_verdicts_total", "verdict", verdict, count.load(Relaxed));
        }
        self.render_latency(&mut page);
        for (name, help, count) in [
            ("claims_total", "Claims made.", &self.claims),
            ("claimed_deliveries_total", "Deliveries that claims brought.", &self.claimed),
            (
                "leases_lost_total",
                "Attempts that ended after their lease: possible duplicates.",
                &self.stale,
            ),
            ("record_failures_total", "Batches the store refused for now.", &self.record_failures),
            ("recovered_deliveries_total", "Deliveries of workers that died.", &self.recovered),
            ("breaker_opened_total", "Breakers that opened.", &self.breaker_opened),
            ("breaker_closed_total", "Breakers that closed.", &self.breaker_closed),
            ("endpoints_disabled_total", "Endpoints we disabled.", &self.endpoints_disabled),
        ] {
            page.single(&format!("posthaste_{name}"), "counter", help, count.load(Relaxed));
        }
        for (name, help, value) in [
            ("in_flight", "Attempts in flight.", occupancy.in_flight),
            ("waiting_in_memory", "Deliveries that wait in memory.", occupancy.waiting),
            ("lanes", "Endpoints with a lane in this process.", occupancy.lanes),
        ] {
            page.single(&format!("posthaste_{name}"), "gauge", help, value as u64);
        }
        page.0
    }

    fn render_latency(&self, page: &mut Page) {
        const NAME: &str = "posthaste_attempt_seconds";
        page.head(NAME, "histogram", "How long attempts took.");
        let mut sum = 0;
        for (bound, count) in BUCKETS_MS.iter().zip(&self.latency) {
            sum += count.load(Relaxed);
            let bound = *bound as f64 / 1_000.0;
            page.labelled(&format!("{NAME}_bucket"), "le", &bound.to_string(), sum);
        }
        let count = self.latency_count.load(Relaxed);
        page.labelled(&format!("{NAME}_bucket"), "le", "+Inf", count);
        let seconds = self.latency_sum_us.load(Relaxed) as f64 / 1e6;
        let _ = writeln!(page.0, "{NAME}_sum {seconds}\n{NAME}_count {count}");
    }
}

/// Text in the exposition format; writing to a string does not fail.
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn labelled(&mut self, name: &str, label: &str, value: &str, count: u64) {
        let _ = writeln!(self.0, "{name}{{{label}=\"{value}\"}} {count}");
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.head(name, kind, help);
        let _ = writeln!(self.0, "{name} {value}");
    }
}

fn label(class: OutcomeClass) -> &'static str {
    match class {
        OutcomeClass::Success => "success",
        OutcomeClass::Failure(kind) => kind.as_str(),
        OutcomeClass::Status(100..200) => "status_1xx",
        OutcomeClass::Status(300..400) => "status_3xx",
        OutcomeClass::Status(400..500) => "status_4xx",
        OutcomeClass::Status(500..600) => "status_5xx",
        OutcomeClass::Status(_) => "status_other",
    }
}
