//! Commands that need no running server.

use super::{SettingsArgs, existing_secret, organisation};
use crate::config::{self, Config, DatabaseUrl};
use crate::env::SystemClock;
use crate::failure::Failure;
use crate::token::{self, Subject};
use crate::{secrets, serve, store};
use clap::Args;
use clap_complete::Shell;
use posthaste_core::id::ApplicationId;
use posthaste_core::time::Clock;
use posthaste_store::transfer::TableReport;
use std::io::Write;

/// Make a token for the API.
#[derive(Args)]
#[command(after_help = "Examples:
  posthaste token                                for the default organisation, ten years
  posthaste token --org org_team1 --expires 30d
  posthaste token --app app_00hNRaLHtMa1W4y2t5mpZn --expires 1d
  export POSTHASTE_TOKEN=$(posthaste token)")]
pub struct TokenArgs {
    /// Organisation that the token is for
    #[arg(long, value_name = "ORG", default_value = token::ORGANISATION)]
    org: String,
    /// Limits the token to one application, by its id
    #[arg(long, value_name = "APP_ID")]
    app: Option<String>,
    /// How long the token is good for, such as 12h or 30d [default: ten years; 7d with --app]
    #[arg(long, value_name = "DURATION")]
    expires: Option<String>,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// Bring the database to this version.
#[derive(Args)]
#[command(after_help = "Examples:
  posthaste migrate --data-dir /var/lib/posthaste
  POSTHASTE_DATABASE_URL=postgres://user:password@db.example/posthaste posthaste migrate
  posthaste migrate --data-dir /var/lib/posthaste --to postgres://user:password@db.example/posthaste

`serve` and `worker` do the same when they start. Run it alone to see whether an upgrade works \
before you take it into use.

With --to, everything in the data folder is copied into an empty PostgreSQL database and compared: \
applications, endpoints with their secrets, messages, what is open, the history. Stop the server \
first; the folder is only read. A copy that was cut off goes on when the same command runs again.")]
pub struct MigrateArgs {
    /// Copy the data folder's database into this empty PostgreSQL database
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// Print the configuration in force and where each value comes from.
#[derive(Args)]
#[command(after_help = "Examples:
  posthaste config
  posthaste config --set http.timeout=5s         try a value before you set it
  posthaste config --explain > posthaste.toml    a file to start from; secrets are masked")]
pub struct ConfigArgs {
    /// Say what each key is
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// Print a completion script for a shell.
#[derive(Args)]
#[command(after_help = "Examples:
  posthaste completions bash > ~/.local/share/bash-completion/completions/posthaste
  posthaste completions fish > ~/.config/fish/completions/posthaste.fish")]
pub struct CompletionsArgs {
    shell: Shell,
}

pub fn token(args: &TokenArgs) -> Result<(), Failure> {
    let organisation = organisation(&args.org)?;
    let wrong = |hint: String| Failure::usage(format!("--expires: {hint}"));
    let asked = args.expires.as_deref().map(config::duration).transpose().map_err(wrong)?;
    if asked.is_some_and(|lifetime| lifetime.is_zero()) {
        return Err(wrong("a token that is good for no time is of no use".to_owned()));
    }
    let application = match &args.app {
        Some(text) => Some(text.parse::<ApplicationId>().map_err(|error| {
            Failure::usage(format!("--app: {error}; an application's uid does not do here"))
        })?),
        None => None,
    };
    let config = args.settings.load([])?;
    let secret = existing_secret(&config)?;
    let (subject, usual) = match application {
        Some(id) => (Subject::Application(id), token::APPLICATION_LIFETIME),
        None => (Subject::Organisation, token::LIFETIME),
    };
    let lifetime = asked.unwrap_or(usual);
    print(&token::mint(&secret, &organisation, subject, SystemClock.now(), lifetime)?)
}

pub fn migrate(args: &MigrateArgs) -> Result<(), Failure> {
    let config = args.settings.load([])?;
    if let Some(to) = &args.to {
        return copy(&config, to);
    }
    if config.needs_data_dir(false) {
        secrets::prepare_folder(&config.data_dir)?;
    }
    serve::runtime()?.block_on(store::migrate(&config, &SystemClock))?;
    let database = &config.database;
    print(&format!("the database {database} is ready for posthaste {}", env!("CARGO_PKG_VERSION")))
}

/// Copies the database of the data folder into another.
fn copy(config: &Config, to: &str) -> Result<(), Failure> {
    let to = DatabaseUrl::parse(to).map_err(|hint| Failure::usage(format!("--to: {hint}")))?;
    let report = serve::runtime()?.block_on(store::copy(config, &to, &SystemClock))?;
    if report.finished_before {
        return print(&format!("the copy in {to} was finished before; nothing was done"));
    }
    if report.rows_before > 0 {
        print(&format!("went on after {} rows of an earlier run", report.rows_before))?;
    }
    print(&format!("{:<20} {:>12}  checksum, the same on both sides", "table", "rows"))?;
    for TableReport { table, sum } in &report.tables {
        print(&format!("{table:<20} {:>12}  {:016x}", sum.rows, sum.checksum))?;
    }
    print(&format!(
        "everything in {} is in {to}; start the servers with it as database_url, and with the \
         jwt_secret of the folder's secrets.toml so that tokens stay good",
        config.database
    ))
}

pub fn config(args: &ConfigArgs) -> Result<(), Failure> {
    let config: Config = args.settings.load([])?;
    write(config::table(&config, args.explain).as_bytes())
}

pub fn completions(args: &CompletionsArgs, command: &mut clap::Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "posthaste", &mut script);
    write(&script)
}

fn print(line: &str) -> Result<(), Failure> {
    write(format!("{line}\n").as_bytes())
}

/// Whoever reads our output may leave early, as `head` does; that is no failure of ours.
pub fn write(bytes: &[u8]) -> Result<(), Failure> {
    match std::io::stdout().write_all(bytes) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}
