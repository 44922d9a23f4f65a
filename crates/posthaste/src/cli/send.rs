//! `posthaste send`: publish one message.

use super::local::write;
use super::{ClientArgs, output, segment};
use crate::failure::Failure;
use clap::Args;
use serde::Serialize;
use serde_json::value::RawValue;
use std::io::Read;
use std::path::PathBuf;

/// Publish a message to an application's endpoints.
#[derive(Args)]
#[command(after_help = "Examples:
  posthaste send --app shop --type invoice.paid '{\"id\": 7, \"amount\": 1200}'
  posthaste send --app shop --type invoice.paid --file invoice.json
  jq .event log.json | posthaste send --app shop --type invoice.paid -
  posthaste send --app shop --create --type ping '{}'

Prints the id of the message. With --event-id, sending the same event again is refused, so that a
script can be run twice.")]
pub struct SendArgs {
    /// Application, by id or uid
    #[arg(long, value_name = "APP")]
    app: String,
    /// Event type, such as invoice.paid
    #[arg(long = "type", value_name = "TYPE")]
    event_type: String,
    /// The event as a JSON object, sent byte for byte; `-` reads standard input
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    payload: Option<String>,
    /// Read the event from a file
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The event's name in your own system
    #[arg(long, value_name = "ID")]
    event_id: Option<String>,
    /// Channel of the message; may be given several times
    #[arg(long = "channel", value_name = "CHANNEL")]
    channels: Vec<String>,
    /// Sending again with the same key answers what the first time answered
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Create the application, with this uid, if it is not there
    #[arg(long)]
    create: bool,
    /// Print the server's whole answer
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MessageIn<'a> {
    event_type: &'a str,
    payload: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    event_id: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    channels: &'a [String],
}

pub fn run(args: SendArgs) -> Result<(), Failure> {
    let text = payload(&args)?;
    let object = text.trim_start().starts_with('{');
    let raw = RawValue::from_string(text.trim().to_owned()).ok().filter(|_| object);
    let payload = raw.ok_or_else(|| Failure::usage("the event must be one JSON object"))?;
    let client = args.client.connect()?;
    if args.create {
        let application = serde_json::json!({ "name": args.app, "uid": args.app });
        client.post("/api/v1/app?get_if_exists=true", application.to_string().into_bytes())?;
    }
    let message = MessageIn {
        event_type: &args.event_type,
        payload: &payload,
        event_id: args.event_id.as_deref(),
        channels: &args.channels,
    };
    let body = serde_json::to_vec(&message).map_err(|error| Failure::new(error.to_string()))?;
    let path = format!("/api/v1/app/{}/msg?with_content=false", segment(&args.app));
    let answer = client.post_once(&path, body, args.idempotency_key.as_deref())?;
    if args.json {
        return output::json(&answer);
    }
    write(format!("{}\n", output::cell(&answer["id"])).as_bytes())
}

fn payload(args: &SendArgs) -> Result<String, Failure> {
    let unreadable = |what: &str, error: std::io::Error| {
        Failure::usage(format!("cannot read the event from {what}: {error}"))
    };
    match (&args.file, &args.payload) {
        (Some(path), _) => std::fs::read_to_string(path)
            .map_err(|error| unreadable(&path.display().to_string(), error)),
        (None, Some(text)) if text != "-" => Ok(text.clone()),
        (None, _) => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.map(|_| text).map_err(|error| unreadable("standard input", error))
        }
    }
}
