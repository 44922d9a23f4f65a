//! `posthaste replay`: send again, one delivery or all of an endpoint that were given up.

use super::local::write;
use super::{ClientArgs, output, segment};
use crate::client::Client;
use crate::config;
use crate::env::SystemClock;
use crate::failure::Failure;
use clap::{Args, ValueEnum};
use posthaste_core::time::{Clock, Timestamp};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::time::Duration;

/// Send again what was given up.
#[derive(Args)]
#[command(after_help = "Examples:
  posthaste replay msg_00hNRaLHtMa1W4y2t5mpZn --app shop --endpoint billing
  posthaste replay --app shop --endpoint billing --since 2h
  posthaste replay --app shop --endpoint billing --since 2026-01-02T00:00:00Z --rate 50
  posthaste replay --app shop --endpoint billing --since 1d --states held --no-wait

Without a message, everything of the endpoint that was accepted in the window and given up is sent
again, paced by --rate; the server goes on with it even if this command is stopped.")]
pub struct ReplayArgs {
    /// One message, by id or event id
    #[arg(conflicts_with_all = ["since", "until", "rate", "states"])]
    message: Option<String>,
    /// Application, by id or uid
    #[arg(long, value_name = "APP")]
    app: String,
    /// Endpoint, by id or uid
    #[arg(long, value_name = "ENDPOINT")]
    endpoint: String,
    /// From when on messages were accepted: a time, or so long ago (2h, 3d)
    #[arg(long, value_name = "WHEN", required_unless_present = "message")]
    since: Option<String>,
    /// Until when [default: now]
    #[arg(long, value_name = "WHEN")]
    until: Option<String>,
    /// Which deliveries
    #[arg(long, value_enum, value_delimiter = ',', default_value = "dead-letter")]
    states: Vec<State>,
    /// At most so many deliveries a second
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Do not wait for the end
    #[arg(long)]
    no_wait: bool,
    /// Print the server's last answer
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum State {
    DeadLetter,
    Held,
}

const POLL_EVERY: Duration = Duration::from_millis(300);

pub fn run(args: &ReplayArgs) -> Result<(), Failure> {
    let client = args.client.connect()?;
    let (app, endpoint) = (segment(&args.app), segment(&args.endpoint));
    if let Some(message) = &args.message {
        let message = segment(message);
        let path = format!("/api/v1/app/{app}/msg/{message}/endpoint/{endpoint}/resend");
        let answer = client.post(&path, b"{}".to_vec())?;
        return if args.json { output::json(&answer) } else { write(b"1 delivery is due now\n") };
    }
    let body = window(args)?.to_string().into_bytes();
    let task = client.post(&format!("/api/v1/app/{app}/endpoint/{endpoint}/replay"), body)?;
    let last = if args.no_wait { task } else { wait(&client, task)? };
    if args.json {
        return output::json(&last);
    }
    let line = match args.no_wait {
        true => format!("{} is running\n", output::cell(&last["id"])),
        false => format!("{} deliveries are due again{}\n", replayed(&last), skipped(&last)),
    };
    write(line.as_bytes())
}

fn window(args: &ReplayArgs) -> Result<Value, Failure> {
    let now = SystemClock.now();
    let time = |flag: &str, text: &str| {
        moment(text, now).map_err(|hint| Failure::usage(format!("{flag}: {hint}")))
    };
    let states: Vec<_> = args
        .states
        .iter()
        .map(|state| match state {
            State::DeadLetter => "dead_letter",
            State::Held => "held",
        })
        .collect();
    let mut body = json!({ "states": states });
    if let Some(since) = &args.since {
        body["since"] = time("--since", since)?.into();
    }
    if let Some(until) = &args.until {
        body["until"] = time("--until", until)?.into();
    }
    if let Some(rate) = args.rate {
        body["ratePerSecond"] = rate.into();
    }
    Ok(body)
}

/// A time as it is, or the time so long before `now`.
fn moment(text: &str, now: Timestamp) -> Result<String, String> {
    // A date begins with a year and a dash, which no duration does.
    if text.as_bytes().get(4) == Some(&b'-') {
        return Ok(text.to_owned());
    }
    config::duration(text)
        .map(|ago| rfc3339(now.before(ago)))
        .map_err(|hint| format!("{hint}, or a time such as 2026-01-02T03:04:05Z"))
}

fn wait(client: &Client, mut task: Value) -> Result<Value, Failure> {
    let id = output::cell(&task["id"]);
    let path = format!("/api/v1/background-task/{}", segment(&id));
    let live = std::io::stderr().is_terminal();
    while task["status"] == "running" {
        pause();
        task = client.get(&path, &[])?;
        if live {
            eprint!("\r{} replayed ", replayed(&task));
        }
    }
    if live {
        eprintln!();
    }
    if task["status"] == "finished" {
        return Ok(task);
    }
    Err(Failure::new(format!("{id} ended as {}", output::cell(&task["status"]))))
}

#[expect(clippy::disallowed_methods, reason = "the server has no event to wait for")]
fn pause() {
    std::thread::sleep(POLL_EVERY);
}

fn replayed(task: &Value) -> String {
    output::cell(&task["data"]["replayed"])
}

fn skipped(task: &Value) -> String {
    match task["data"]["skipped"].as_u64() {
        None | Some(0) => String::new(),
        Some(count) => format!(", {count} skipped because their payload is gone"),
    }
}

/// To the second, in UTC. Days to a date after Howard Hinnant's `civil_from_days`,
/// <https://howardhinnant.github.io/date_algorithms.html>.
fn rfc3339(at: Timestamp) -> String {
    let seconds = at.as_secs().max(0);
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_times_or_ages() {
        let now = Timestamp::from_secs(1_709_251_199);
        assert_eq!(moment("0", now).unwrap(), "2024-02-29T23:59:59Z");
        assert_eq!(moment("1d", now).unwrap(), "2024-02-28T23:59:59Z");
        assert_eq!(moment("2026-01-02", now).unwrap(), "2026-01-02");
        assert!(moment("yesterday", now).is_err());
        assert_eq!(rfc3339(Timestamp::from_secs(951_868_800)), "2000-03-01T00:00:00Z");
        assert_eq!(rfc3339(Timestamp::from_secs(0)), "1970-01-01T00:00:00Z");
    }
}
