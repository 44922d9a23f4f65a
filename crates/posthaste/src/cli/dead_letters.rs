//! `posthaste dead-letters`: what was given up, and why.

use super::{ClientArgs, output};
use crate::failure::Failure;
use clap::{Args, Subcommand};
use serde_json::Value;

/// Look at deliveries that were given up.
#[derive(Args)]
pub struct DeadLettersArgs {
    #[command(subcommand)]
    command: DeadLettersCommand,
}

#[derive(Subcommand)]
enum DeadLettersCommand {
    List(ListArgs),
}

/// List dead letters, newest first.
#[derive(Args)]
#[command(after_help = "Examples:
  posthaste dead-letters list
  posthaste dead-letters list --app shop --endpoint ep_00hNRaLHtMa1W4y2t5mpZn --limit 200
  posthaste dead-letters list --json | jq -r '.[].msgId'

`posthaste replay` sends them again.")]
struct ListArgs {
    /// Only of this application, by id or uid
    #[arg(long, value_name = "APP")]
    app: Option<String>,
    /// Only of this endpoint, by id or uid; needs --app
    #[arg(long, value_name = "ENDPOINT", requires = "app")]
    endpoint: Option<String>,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// Print what the server answered, as one list
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    client: ClientArgs,
}

const PAGE: usize = 250;

pub fn run(args: DeadLettersArgs) -> Result<(), Failure> {
    let DeadLettersCommand::List(args) = args.command;
    let letters = fetch(&args)?;
    if args.json {
        return output::json(&Value::Array(letters));
    }
    let row = |letter: &Value| {
        ["endedAt", "appId", "endpointId", "msgId", "attempts", "lastStatus", "cause"]
            .map(|name| output::cell(&letter[name]))
            .to_vec()
    };
    let head = ["GIVEN_UP_AT", "APPLICATION", "ENDPOINT", "MESSAGE", "ATTEMPTS", "STATUS", "CAUSE"];
    output::table(&head, &letters.iter().map(row).collect::<Vec<_>>())
}

fn fetch(args: &ListArgs) -> Result<Vec<Value>, Failure> {
    let client = args.client.connect()?;
    let mut letters = Vec::new();
    let mut iterator: Option<String> = None;
    while letters.len() < args.limit {
        let limit = (args.limit - letters.len()).min(PAGE).to_string();
        let mut query = vec![("limit", limit.as_str())];
        query.extend(args.app.as_deref().map(|app| ("app", app)));
        query.extend(args.endpoint.as_deref().map(|endpoint| ("endpoint", endpoint)));
        query.extend(iterator.as_deref().map(|iterator| ("iterator", iterator)));
        let page = client.get("/api/v1/dead-letter", &query)?;
        let items = page["data"].as_array().cloned().unwrap_or_default();
        let done = items.is_empty() || page["done"].as_bool().unwrap_or(true);
        letters.extend(items);
        iterator = page["iterator"].as_str().map(str::to_owned);
        if done || iterator.is_none() {
            break;
        }
    }
    Ok(letters)
}
