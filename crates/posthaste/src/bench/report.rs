//! The benchmark's figures.

use serde_json::json;
use std::time::Duration;

pub struct Report {
    /// Sorted.
    pub accept_latencies: Vec<Duration>,
    /// Sorted.
    pub delivery_latencies: Vec<Duration>,
    pub expected: u64,
    pub duplicates: u64,
    pub accept_time: Duration,
    pub delivery_time: Duration,
    /// Of the whole process: server, senders and receiver.
    pub cpu_seconds: Option<f64>,
}

impl Report {
    pub fn lost(&self) -> u64 {
        self.expected - (self.delivery_latencies.len() as u64).min(self.expected)
    }

    fn cpu_per_thousand(&self) -> Option<f64> {
        let delivered = self.delivery_latencies.len() as f64;
        self.cpu_seconds.filter(|_| delivered > 0.0).map(|cpu| cpu * 1_000.0 / delivered)
    }

    pub fn text(&self) -> String {
        let accepted = self.accept_latencies.len();
        let delivered = self.delivery_latencies.len();
        let ms = |sorted: &[Duration], percent| {
            quantile(sorted, percent).map_or("-".to_owned(), |ms| format!("{ms:.2} ms"))
        };
        let row = |sorted: &[Duration]| {
            format!("P50 {}  P95 {}  P99 {}", ms(sorted, 50), ms(sorted, 95), ms(sorted, 99))
        };
        format!(
            "accepted    {accepted}, {:.0} a second, {}\n\
             delivered   {delivered}, {:.0} a second, {}\n\
             lost        {}\n\
             duplicates  {}\n\
             processor   {} seconds for 1,000 deliveries, senders and receiver included\n",
            rate(accepted, self.accept_time),
            row(&self.accept_latencies),
            rate(delivered, self.delivery_time),
            row(&self.delivery_latencies),
            self.lost(),
            self.duplicates,
            self.cpu_per_thousand().map_or("-".to_owned(), |cpu| format!("{cpu:.3}")),
        )
    }

    pub fn json(&self) -> String {
        let side = |sorted: &[Duration], time| {
            json!({
                "count": sorted.len(),
                "per_second": rate(sorted.len(), time),
                "p50_ms": quantile(sorted, 50),
                "p95_ms": quantile(sorted, 95),
                "p99_ms": quantile(sorted, 99),
            })
        };
        let report = json!({
            "accepted": side(&self.accept_latencies, self.accept_time),
            "delivered": side(&self.delivery_latencies, self.delivery_time),
            "lost": self.lost(),
            "duplicates": self.duplicates,
            "cpu_seconds_per_1000": self.cpu_per_thousand(),
        });
        format!("{report:#}\n")
    }
}

pub fn sorted(mut latencies: Vec<Duration>) -> Vec<Duration> {
    latencies.sort_unstable();
    latencies
}

/// Processor time of this process so far, from `/proc` in its ticks of 10 ms.
pub fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program, in brackets, may hold blanks.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    ticks.sum::<Result<f64, _>>().ok().map(|ticks| ticks / 100.0)
}

fn rate(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64().max(0.001)
}

/// By the nearest rank, in milliseconds; `None` without samples.
fn quantile(sorted: &[Duration], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).map(|latency| latency.as_secs_f64() * 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_by_nearest_rank() {
        let sorted: Vec<_> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(quantile(&sorted, 50), Some(50.0));
        assert_eq!(quantile(&sorted, 99), Some(99.0));
        assert_eq!(quantile(&sorted[..1], 50), Some(1.0));
        assert_eq!(quantile(&[], 50), None);
    }
}
