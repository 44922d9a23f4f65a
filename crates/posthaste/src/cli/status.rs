//! `posthaste status`: how things stand, in one row.

use super::{ClientArgs, output};
use crate::failure::Failure;
use clap::Args;
use serde_json::Value;

/// Show how deliveries stand.
#[derive(Args)]
#[command(after_help = "Examples:
  posthaste status
  posthaste status --json | jq .dead_letter
  watch posthaste status

Delivery times count from acceptance to delivery, over the last hour. Exit code 3: the server \
cannot be reached.")]
pub struct StatusArgs {
    /// Print the server's whole answer
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    client: ClientArgs,
}

pub fn run(args: &StatusArgs) -> Result<(), Failure> {
    let answer = args.client.connect()?.get("/api/v1/status", &[])?;
    if args.json {
        return output::json(&answer);
    }
    let (head, row): (Vec<_>, Vec<_>) = columns(&answer).into_iter().unzip();
    output::table(&head, &[row])?;
    for warning in answer["warnings"].as_array().into_iter().flatten() {
        let part = |name: &str| warning[name].as_str().unwrap_or("unknown");
        eprintln!("posthaste: warning: {}: {}", part("code"), part("detail"));
    }
    Ok(())
}

fn columns(status: &Value) -> Vec<(&'static str, String)> {
    let count = |name: &str| output::cell(&status[name]);
    let oldest = &status["oldest_undelivered"];
    let times = &status["delivery_time_ms"];
    let ms = |name: &str| match times[name].as_f64() {
        Some(ms) => format!("{ms:.1}ms"),
        None => "-".to_owned(),
    };
    vec![
        ("PENDING", count("pending")),
        ("IN_FLIGHT", count("in_flight")),
        ("AWAITING_RETRY", count("awaiting_retry")),
        ("DEAD_LETTER", count("dead_letter")),
        ("HELD", count("held")),
        ("DELIVERED_1H", count("delivered_last_hour")),
        ("FAILED_1H", count("failed_last_hour")),
        ("OLDEST", output::cell(&oldest["message_id"])),
        ("AGE", age(&oldest["age_seconds"])),
        ("AVG", ms("average")),
        ("P50", ms("p50")),
        ("P95", ms("p95")),
        ("P99", ms("p99")),
    ]
}

/// The two largest units of a time.
fn age(seconds: &Value) -> String {
    let Some(seconds) = seconds.as_f64() else { return "-".to_owned() };
    let seconds = seconds.max(0.0) as u64;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        for (seconds, text) in [(5, "5s"), (65, "1m5s"), (7_260, "2h1m"), (90_000, "1d1h")] {
            assert_eq!(age(&Value::from(seconds)), text);
        }
        assert_eq!(age(&Value::Null), "-");
    }

    #[test]
    fn what_is_not_known_is_a_dash() {
        let row = columns(&serde_json::json!({ "pending": 3 }));
        assert_eq!(row[0], ("PENDING", "3".to_owned()));
        assert!(row[1..].iter().all(|(_, cell)| cell == "-"));
    }
}
