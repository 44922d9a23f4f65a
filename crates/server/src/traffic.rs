//! Counts of requests and accepted messages, and their text for Prometheus.

use http::StatusCode;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What this process's API did since it started.
#[derive(Debug, Default)]
pub struct Traffic {
    counters: Vec<(&'static str, String, Arc<Counter>)>,
    accepted: AtomicU64,
    repeated: AtomicU64,
}

/// The requests of one operation.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    /// 1xx to 5xx.
    classes: [AtomicU64; 5],
    micros: AtomicU64,
}

impl Counter {
    pub fn count(&self, status: StatusCode, took: Duration) {
        let class = usize::from(status.as_u16() / 100).clamp(1, 5) - 1;
        self.classes[class].fetch_add(1, Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Relaxed);
    }
}

impl Traffic {
    pub(crate) fn counter(&mut self, path: &'static str, method: &str) -> Arc<Counter> {
        let counter = Arc::new(Counter::default());
        self.counters.push((path, method.to_owned(), counter.clone()));
        counter
    }

    pub(crate) fn accepted(&self) {
        self.accepted.fetch_add(1, Relaxed);
    }

    pub(crate) fn repeated(&self) {
        self.repeated.fetch_add(1, Relaxed);
    }

    /// Appends the Prometheus text format, version 0.0.4. Labels are routes, never paths.
    pub fn render(&self, text: &mut String) {
        text.push_str("# HELP posthaste_http_requests_total Requests answered.\n");
        text.push_str("# TYPE posthaste_http_requests_total counter\n");
        for (route, method, counter) in &self.counters {
            for (index, count) in counter.classes.iter().enumerate() {
                let count = count.load(Relaxed);
                if count > 0 {
                    let class = index + 1;
                    // Writing to a string cannot fail.
                    let _ = writeln!(
                        text,
                        "posthaste_http_requests_total{{route=\"{route}\",method=\"{method}\",\
                         status=\"{class}xx\"}} {count}"
                    );
                }
            }
        }
        text.push_str("# HELP posthaste_http_request_seconds_total Time spent on requests.\n");
        text.push_str("# TYPE posthaste_http_request_seconds_total counter\n");
        for (route, method, counter) in &self.counters {
            let micros = counter.micros.load(Relaxed);
            if micros > 0 {
                let seconds = Duration::from_micros(micros).as_secs_f64();
                let _ = writeln!(
                    text,
                    "posthaste_http_request_seconds_total{{route=\"{route}\",\
                     method=\"{method}\"}} {seconds}"
                );
            }
        }
        for (name, about, count) in [
            ("accepted", "Messages accepted.", &self.accepted),
            ("repeated", "Messages answered from their idempotency key.", &self.repeated),
        ] {
            let count = count.load(Relaxed);
            let _ = write!(
                text,
                "# HELP posthaste_messages_{name}_total {about}\n\
                 # TYPE posthaste_messages_{name}_total counter\n\
                 posthaste_messages_{name}_total {count}\n"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_appear_by_route_and_class() {
        let mut traffic = Traffic::default();
        let counter = traffic.counter("/api/v1/app/{app_id}", "GET");
        counter.count(StatusCode::OK, Duration::from_millis(250));
        counter.count(StatusCode::OK, Duration::from_millis(250));
        counter.count(StatusCode::NOT_FOUND, Duration::ZERO);
        traffic.accepted();
        let mut text = String::new();
        traffic.render(&mut text);
        let labels = r#"route="/api/v1/app/{app_id}",method="GET""#;
        for line in [
            format!(r#"posthaste_http_requests_total{{{labels},status="2xx"}} 2"#),
            format!(r#"posthaste_http_requests_total{{{labels},status="4xx"}} 1"#),
            format!("posthaste_http_request_seconds_total{{{labels}}} 0.5"),
            "posthaste_messages_accepted_total 1".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
