//! The command line: what each command takes, and where it goes.

mod dead_letters;
mod local;
mod output;
mod replay;
mod send;
mod status;

pub use local::write;
pub use output::cell;

use crate::client::Client;
use crate::config::{Config, Database, Flags};
use crate::env::SystemClock;
use crate::failure::Failure;
use crate::secrets;
use crate::token::{self, Subject};
use crate::{bench, demo, serve};
use clap::{Args, CommandFactory, Parser, Subcommand};
use posthaste_core::event::OrganisationId;
use posthaste_core::time::Clock;
use std::path::PathBuf;
use std::time::Duration;

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong command line or configuration, \
    3 server unreachable, 4 server said no.";
/// A client command's own token is used at once.
const CLIENT_TOKEN_LIFETIME: Duration = Duration::from_secs(3_600);

/// Reliable, measured webhook delivery.
#[derive(Parser)]
#[command(name = "posthaste", version, arg_required_else_help = true, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(ServeArgs),
    Worker(WorkerArgs),
    Demo(demo::DemoArgs),
    Send(send::SendArgs),
    Status(status::StatusArgs),
    Token(local::TokenArgs),
    Migrate(local::MigrateArgs),
    Config(local::ConfigArgs),
    DeadLetters(dead_letters::DeadLettersArgs),
    Replay(replay::ReplayArgs),
    Bench(bench::BenchArgs),
    Completions(local::CompletionsArgs),
}

/// Run the API and the worker in one process.
#[derive(Args)]
#[command(after_help = "Examples:
  posthaste serve
  posthaste serve --listen 0.0.0.0:8071 --data-dir /var/lib/posthaste
  posthaste serve --dev                     also deliver to 127.0.0.1
  posthaste serve --set retry.preset=short --set log.format=json
  posthaste serve --no-worker               the API only

SIGTERM or Ctrl-C stops in order: no new work, what is in flight finishes within
shutdown.timeout, the rest is given back, exit code 0. A second signal exits at once (130).")]
struct ServeArgs {
    /// Address and port of the API
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Also allow receivers on this machine's loopback addresses
    #[arg(long)]
    dev: bool,
    /// Accept messages but deliver none
    #[arg(long)]
    no_worker: bool,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// Run the worker without the API.
#[derive(Args)]
#[command(after_help = "Examples:
  posthaste worker --data-dir /var/lib/posthaste
  posthaste worker --metrics-listen 127.0.0.1:9071

With `serve --no-worker` beside it, the API and the worker can be restarted apart.")]
struct WorkerArgs {
    /// Show metrics and health at this address and port
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<String>,
    /// Also allow receivers on this machine's loopback addresses
    #[arg(long)]
    dev: bool,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// Where the configuration comes from.
#[derive(Args, Default)]
pub struct SettingsArgs {
    /// Configuration file [default: ./posthaste.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder of the database and the secrets
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
    /// Set any key of the configuration
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// How a client command reaches the server.
#[derive(Args)]
pub struct ClientArgs {
    /// Address of the server
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Organisation token [default: POSTHASTE_TOKEN, else one made with the data folder's secret]
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// Parses the command line and does what it says.
///
/// # Errors
/// What is to be printed, and the exit code.
pub fn run() -> Result<(), Failure> {
    match Cli::parse().command {
        Command::Serve(args) => {
            let listen = args.listen.map(|text| ("listen", text, "--listen"));
            let dev = args.dev.then(|| ("dev", "true".to_owned(), "--dev"));
            let config = args.settings.load([listen, dev])?;
            serve::run(config, serve::Parts { api: true, worker: !args.no_worker })
        }
        Command::Worker(args) => {
            let metrics = args.metrics_listen;
            let metrics = metrics.map(|text| ("worker.metrics_listen", text, "--metrics-listen"));
            let dev = args.dev.then(|| ("dev", "true".to_owned(), "--dev"));
            let config = args.settings.load([metrics, dev])?;
            serve::run(config, serve::Parts { api: false, worker: true })
        }
        Command::Demo(args) => demo::run(&args),
        Command::Send(args) => send::run(args),
        Command::Status(args) => status::run(&args),
        Command::Token(args) => local::token(&args),
        Command::Migrate(args) => local::migrate(&args),
        Command::Config(args) => local::config(&args),
        Command::DeadLetters(args) => dead_letters::run(args),
        Command::Replay(args) => replay::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Completions(args) => local::completions(&args, &mut Cli::command()),
    }
}

/// A flag that stands for a key: key, value and the flag's name.
type FlagValue = Option<(&'static str, String, &'static str)>;

impl SettingsArgs {
    /// # Errors
    /// The configuration is wrong.
    pub fn load(&self, more: impl IntoIterator<Item = FlagValue>) -> Result<Config, Failure> {
        let mut flags = Flags { config: self.config.clone(), values: Vec::new() };
        if let Some(folder) = &self.data_dir {
            let folder = folder.display().to_string();
            flags.values.push(("data_dir".to_owned(), folder, "--data-dir".to_owned()));
        }
        for (key, value, flag) in more.into_iter().flatten() {
            flags.values.push((key.to_owned(), value, flag.to_owned()));
        }
        for pair in &self.set {
            let (key, value) = pair.split_once('=').ok_or_else(|| {
                Failure::usage("--set takes KEY=VALUE, such as --set retry.preset=short")
            })?;
            flags.values.push((key.trim().to_owned(), value.to_owned(), "--set".to_owned()));
        }
        Config::load(&flags)
    }
}

impl ClientArgs {
    /// # Errors
    /// The address or the configuration is wrong, or there is no token to be had.
    pub fn connect(&self) -> Result<Client, Failure> {
        let url = self.url.clone().or_else(|| std::env::var("POSTHASTE_URL").ok());
        let token = self.token.clone().or_else(|| std::env::var("POSTHASTE_TOKEN").ok());
        if let (Some(url), Some(token)) = (&url, &token) {
            return Client::new(url, token);
        }
        let config = self.settings.load([])?;
        let url = url.unwrap_or_else(|| format!("http://{}", reachable(config.listen)));
        let token = match token {
            Some(token) => token,
            None => own_token(&config)?,
        };
        Client::new(&url, &token)
    }
}

/// The secret in force, without making one.
///
/// # Errors
/// There is none yet.
pub fn existing_secret(config: &Config) -> Result<crate::config::JwtSecret, Failure> {
    if let Some(secret) = &config.jwt_secret {
        return Ok(secret.clone());
    }
    secrets::find(&config.data_dir)?.ok_or_else(|| {
        let way_out = match config.database {
            Database::Sqlite(_) => "start `posthaste serve` once, name its folder with --data-dir",
            Database::Postgres(_) => "set POSTHASTE_JWT_SECRET to that of the servers",
        };
        Failure::usage(format!(
            "no secret to make a token with in {}; {way_out}, or give a token with --token or \
             POSTHASTE_TOKEN",
            config.data_dir.display()
        ))
    })
}

fn own_token(config: &Config) -> Result<String, Failure> {
    let secret = existing_secret(config)?;
    let organisation = organisation(token::ORGANISATION)?;
    let now = SystemClock.now();
    token::mint(&secret, &organisation, Subject::Organisation, now, CLIENT_TOKEN_LIFETIME)
}

/// # Errors
/// The text is not an organisation's id.
pub fn organisation(text: &str) -> Result<OrganisationId, Failure> {
    OrganisationId::new(text).ok_or_else(|| {
        Failure::usage(format!("`{text}` is not an organisation: use org_ and letters or digits"))
    })
}

/// A server that listens everywhere is reached on this machine.
pub fn reachable(listen: std::net::SocketAddr) -> std::net::SocketAddr {
    let mut address = listen;
    if listen.ip().is_unspecified() {
        address.set_ip(match listen.ip() {
            std::net::IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            std::net::IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

/// A part of a path, with what has a meaning there escaped.
pub fn segment(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_shows_examples() {
        for command in Cli::command().get_subcommands() {
            let help = command.clone().render_long_help().to_string();
            let nested = command.get_subcommands().next().is_some();
            assert!(nested || help.contains("Example"), "{}", command.get_name());
            assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
        }
    }

    #[test]
    fn a_path_cannot_be_broken_out_of() {
        assert_eq!(segment("../x y?z"), "..%2Fx%20y%3Fz");
    }
}
