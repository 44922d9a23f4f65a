//! The configuration, parsed once into typed parts; nothing reads a file or the environment later.
//!
//! **Invariant:** a value that is refused is named with its key, where it came from, the value
//! itself (masked if it is a secret) and what would be right.

mod database;
mod keys;
mod layers;
mod show;
mod value;

#[cfg(test)]
mod tests;

pub use database::{Database, DatabaseUrl};
pub use layers::Flags;
pub use show::table;
pub use value::duration;

use crate::failure::Failure;
use layers::{Layers, MASK, Origin, Setting};
use posthaste_core::breaker::BreakerPolicy;
use posthaste_core::lane::LaneRules;
use posthaste_core::limits;
use posthaste_core::retry::RetryPolicy;
use posthaste_engine::SigningHeaders;
use posthaste_engine::guard::Allowed;
use posthaste_server::SecretKind;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use value::Parsed;

/// How deliveries name themselves.
pub const USER_AGENT: &str =
    concat!("posthaste/", env!("CARGO_PKG_VERSION"), " (+", env!("CARGO_PKG_REPOSITORY"), ")");

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// A key of HMAC should be as long as its hash (RFC 7518 section 3.2).
const JWT_SECRET_BYTES_LEAST: usize = 32;
/// Accepting, recording, claiming and reading must not wait for each other's connection.
const CONNECTIONS_LEAST: u64 = 4;
const CONNECTIONS_MOST: u64 = 100;

/// Everything that can be set, checked.
#[derive(Clone, Debug)]
pub struct Config {
    pub listen: SocketAddr,
    /// Where a worker without the API shows metrics and health; `None`: nowhere.
    pub metrics_listen: Option<SocketAddr>,
    pub data_dir: PathBuf,
    /// Without a slash at its end; `None`: where it listens.
    pub public_url: Option<String>,
    pub database: Database,
    /// The same server past its pooler; only with PostgreSQL.
    pub database_direct: Option<DatabaseUrl>,
    /// Connections to PostgreSQL.
    pub database_connections_max: usize,
    /// `None`: the data folder's own secret is used, and made if it is not there.
    pub jwt_secret: Option<JwtSecret>,
    pub allowed: Allowed,
    pub dev: bool,
    pub retry: RetryPolicy,
    pub final_statuses: Vec<u16>,
    pub timeout: Duration,
    pub user_agent: String,
    pub signing: SigningHeaders,
    pub secret_kind: SecretKind,
    pub https_only: bool,
    pub rules: LaneRules,
    pub in_flight_max: usize,
    pub memory_bytes_max: usize,
    pub log: Log,
    /// `None`: for ever.
    pub history_kept_for: Option<Duration>,
    pub shutdown_timeout: Duration,
    /// What is legal but probably not meant; said once at the start.
    pub warnings: Vec<String>,
    layers: Layers,
}

/// The key that tokens are signed with; `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct JwtSecret(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    pub format: LogFormat,
    pub level: tracing::Level,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

impl Config {
    /// Reads file, environment and flags.
    ///
    /// # Errors
    /// The first thing that is wrong, as a usage failure.
    pub fn load(flags: &Flags) -> Result<Self, Failure> {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| name.starts_with("POSTHASTE_"))
            .map(|(name, value)| match value.into_string() {
                Ok(value) => Ok((name, value)),
                Err(_) => Err(Failure::usage(format!("{name} in the environment is not UTF-8"))),
            })
            .collect::<Result<Vec<_>, _>>()?;
        Self::from_layers(Layers::read(flags, environment)?)
    }

    /// From these values and nothing else: no file, no environment.
    ///
    /// # Errors
    /// A value is wrong.
    pub fn of(values: &[(&str, &str)]) -> Result<Self, Failure> {
        Self::from_layers(Layers::of(values)?)
    }

    fn from_layers(mut layers: Layers) -> Result<Self, Failure> {
        let mut warnings = Vec::new();
        let timeout = parse(&layers, "http.timeout", |text| {
            value::duration_within(text, Duration::from_millis(100), limits::TIMEOUT_MAX)
        })?;
        let breaker = breaker(&mut layers)?;
        let in_flight_max =
            parse(&layers, "worker.in_flight_max", |text| value::number(text, 1, 65_536))?;
        let per_endpoint = parse(&layers, "worker.in_flight_per_endpoint_max", |text| {
            value::number(text, 1, in_flight_max)
                .map_err(|hint| format!("{hint} (`worker.in_flight_max`)"))
        })?;
        let data_dir = parse(&layers, "data_dir", non_empty).map(PathBuf::from)?;
        layers.derive("http.user_agent", USER_AGENT.to_owned(), "this version");
        let url = format!("sqlite:{}", data_dir.join("posthaste.db").display());
        layers.derive("database_url", url, "data_dir");
        parse(&layers, "queue_url", queue)?;
        let database = parse(&layers, "database_url", Database::parse)?;
        Ok(Self {
            listen: parse(&layers, "listen", listen)?,
            metrics_listen: optional(&layers, "worker.metrics_listen", listen)?,
            public_url: optional(&layers, "public_url", public_url)?,
            database_connections_max: parse(&layers, "database_connections_max", |text| {
                value::number(text, CONNECTIONS_LEAST, CONNECTIONS_MOST)
            })
            .map(|count| usize::try_from(count).unwrap_or(usize::MAX))?,
            database_direct: direct(&layers, &database, &mut warnings)?,
            database,
            jwt_secret: jwt_secret(&layers, &mut warnings)?,
            allowed: parse(&layers, "allowed_networks", |text| {
                value::items(text)?;
                Allowed::parse(text).map_err(|error| error.to_string())
            })?,
            dev: parse(&layers, "dev", value::boolean)?,
            retry: retry(&layers, &mut warnings)?,
            final_statuses: parse(&layers, "retry.final_statuses", |text| {
                value::list(text, value::status)
            })?,
            timeout,
            user_agent: parse(&layers, "http.user_agent", header_value)?,
            signing: parse(&layers, "signing.headers", |text| {
                value::choice(text, &SIGNING_HEADERS)
            })?,
            secret_kind: parse(&layers, "signing.kind", |text| value::choice(text, &SECRET_KINDS))?,
            https_only: parse(&layers, "endpoint.https_only", value::boolean)?,
            rules: LaneRules {
                breaker,
                disable_after: parse(&layers, "endpoint.disable_after", |text| {
                    or_never(text, Duration::from_secs(1), 365 * DAY)
                })?,
                in_flight_max: u32::try_from(per_endpoint).unwrap_or(u32::MAX),
            },
            in_flight_max: usize::try_from(in_flight_max).unwrap_or(usize::MAX),
            memory_bytes_max: parse(&layers, "worker.memory_max", |text| {
                let least = limits::PAYLOAD_BYTES_MAX as u64;
                value::bytes(text, least.next_power_of_two(), 1 << 36)
            })
            .map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))?,
            log: log(&layers)?,
            history_kept_for: parse(&layers, "retention.history", |text| {
                or_never(text, DAY, 36_500 * DAY)
            })?,
            shutdown_timeout: parse(&layers, "shutdown.timeout", |text| {
                value::duration_within(text, Duration::ZERO, 10 * MINUTE)
            })?,
            data_dir,
            warnings,
            layers,
        })
    }

    /// The networks that endpoints may be in, with what `dev` adds.
    pub fn networks(&self) -> Allowed {
        if self.dev { self.allowed.clone().with_loopback() } else { self.allowed.clone() }
    }

    /// Whether a process with these parts keeps anything in the data folder.
    pub fn needs_data_dir(&self, api: bool) -> bool {
        self.needs_own_secret(api) || self.database.is_in(&self.data_dir)
    }

    /// Whether such a process uses the data folder's secret. Workers of a PostgreSQL server may run
    /// where there is no folder to write to, and sign no tokens.
    pub fn needs_own_secret(&self, api: bool) -> bool {
        let alone = matches!(self.database, Database::Sqlite(_));
        self.jwt_secret.is_none() && (api || alone)
    }
}

impl JwtSecret {
    /// # Errors
    /// What would be right instead: an empty key would let anybody sign.
    pub fn new(text: &str) -> Parsed<Self> {
        if text.trim().is_empty() {
            return Err("an empty key would let anybody sign tokens; set one of 32 characters or \
                        more, or leave it unset to have one made"
                .to_owned());
        }
        if text.trim() != text {
            return Err("white space at its beginning or end; remove it".to_owned());
        }
        Ok(Self(text.to_owned()))
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for JwtSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JwtSecret(…)")
    }
}

const SIGNING_HEADERS: [(&str, SigningHeaders); 3] = [
    ("webhook", SigningHeaders::Webhook),
    ("svix", SigningHeaders::Svix),
    ("both", SigningHeaders::Both),
];

const SECRET_KINDS: [(&str, SecretKind); 2] =
    [("hmac", SecretKind::Hmac), ("ed25519", SecretKind::Ed25519)];

impl LogFormat {
    const CHOICES: [(&'static str, Self); 2] = [("text", Self::Text), ("json", Self::Json)];
}

const LEVELS: [(&str, tracing::Level); 5] = [
    ("error", tracing::Level::ERROR),
    ("warn", tracing::Level::WARN),
    ("info", tracing::Level::INFO),
    ("debug", tracing::Level::DEBUG),
    ("trace", tracing::Level::TRACE),
];

fn parse<T>(
    layers: &Layers,
    name: &'static str,
    read: impl FnOnce(&str) -> Parsed<T>,
) -> Result<T, Failure> {
    let unset = Setting { text: String::new(), origin: Origin::Default };
    let setting = layers.get(name).unwrap_or(&unset);
    read(&setting.text).map_err(|hint| refused(name, setting, &hint))
}

fn optional<T>(
    layers: &Layers,
    name: &'static str,
    read: impl FnOnce(&str) -> Parsed<T>,
) -> Result<Option<T>, Failure> {
    layers.get(name).map(|_| parse(layers, name, read)).transpose()
}

fn refused(name: &str, setting: &Setting, hint: &str) -> Failure {
    let is_login = ["://", "@"].iter().any(|part| setting.text.contains(part));
    let shown = match setting.text.split_once(':') {
        // Behind the scheme may be a password, and who knows where if it is not well-formed.
        Some((scheme, _)) if name.ends_with("_url") && is_login => format!("`{scheme}:{MASK}`"),
        _ => match keys::find(name).map(|key| key.masked(&setting.text)) {
            Some(masked) if masked == MASK => masked,
            masked => format!("`{}`", masked.as_ref().unwrap_or(&setting.text)),
        },
    };
    Failure::usage(format!("{name} = {shown} ({}): {hint}", setting.origin))
}

fn non_empty(text: &str) -> Parsed<String> {
    if text.trim().is_empty() { Err("name a folder".to_owned()) } else { Ok(text.to_owned()) }
}

fn header_value(text: &str) -> Parsed<String> {
    let visible = !text.trim().is_empty() && text.bytes().all(|byte| (0x20..0x7F).contains(&byte));
    let fits = text.len() <= limits::HEADER_VALUE_BYTES_MAX;
    let hint = || "use 1 to 4096 printable ASCII characters".to_owned();
    (visible && fits).then(|| text.trim().to_owned()).ok_or_else(hint)
}

fn public_url(text: &str) -> Parsed<String> {
    let text = text.trim().trim_end_matches('/');
    let url = url::Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let plain = url.is_some_and(|url| {
        let is_login = !url.username().is_empty() || url.password().is_some();
        url.has_host() && url.query().is_none() && !is_login
    });
    let hint = || "use an address such as https://hooks.example.com, without a login".to_owned();
    plain.then(|| text.to_owned()).ok_or_else(hint)
}

fn queue(text: &str) -> Parsed<()> {
    match text.trim() {
        "store" => Ok(()),
        _ => Err("this version hands work out through the store only; use `store`".to_owned()),
    }
}

fn direct(
    layers: &Layers,
    database: &Database,
    warnings: &mut Vec<String>,
) -> Result<Option<DatabaseUrl>, Failure> {
    let direct = optional(layers, "database_direct_url", DatabaseUrl::parse)?;
    if direct.is_some() && matches!(database, Database::Sqlite(_)) {
        warnings.push("database_direct_url does nothing without PostgreSQL".to_owned());
        return Ok(None);
    }
    Ok(direct)
}

fn listen(text: &str) -> Parsed<SocketAddr> {
    let hint = |_| "use an address and a port, such as 127.0.0.1:8071".to_owned();
    text.trim().parse().map_err(hint)
}

fn log(layers: &Layers) -> Result<Log, Failure> {
    Ok(Log {
        format: parse(layers, "log.format", |text| value::choice(text, &LogFormat::CHOICES))?,
        level: parse(layers, "log.level", |text| value::choice(text, &LEVELS))?,
    })
}

fn or_never(text: &str, least: Duration, most: Duration) -> Parsed<Option<Duration>> {
    if text.trim() == "never" {
        return Ok(None);
    }
    value::duration_within(text, least, most)
        .map(Some)
        .map_err(|hint| format!("{hint}, or `never`"))
}

/// A preset, or a schedule of one's own; of the two, the one that was set later in the order of
/// layers.
fn jwt_secret(layers: &Layers, warnings: &mut Vec<String>) -> Result<Option<JwtSecret>, Failure> {
    let secret = optional(layers, "jwt_secret", JwtSecret::new)?;
    if secret.as_ref().is_some_and(|secret| secret.expose().len() < JWT_SECRET_BYTES_LEAST) {
        warnings.push(format!(
            "jwt_secret has fewer than {JWT_SECRET_BYTES_LEAST} characters: whoever has one token \
             can find it by trying, and then make any token"
        ));
    }
    Ok(secret)
}

fn retry(layers: &Layers, warnings: &mut Vec<String>) -> Result<RetryPolicy, Failure> {
    let jitter = parse(layers, "retry.jitter", value::fraction)?;
    let set_by = |name| layers.get(name).map(|setting| &setting.origin);
    let is_set = |name| set_by(name).is_some_and(|origin| *origin != Origin::Default);
    let (delays_by, preset_by) = (set_by("retry.delays"), set_by("retry.preset"));
    if let (Some(delays_by), Some(preset_by)) = (delays_by, preset_by)
        && delays_by.rank() >= preset_by.rank()
    {
        if delays_by.rank() == preset_by.rank() {
            return Err(Failure::usage(format!(
                "retry.preset ({preset_by}) and retry.delays ({delays_by}) are both set; keep one"
            )));
        }
        return parse(layers, "retry.delays", |text| {
            let delay = |text: &str| {
                value::duration_within(text, Duration::ZERO, limits::DELAY_MAX)
                    .map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX))
            };
            let delays_ms = value::list(text, delay)?;
            RetryPolicy::Schedule { delays_ms, jitter }.checked().map_err(|error| error.to_string())
        });
    }
    if is_set("retry.jitter") {
        warnings.push("retry.jitter does nothing without retry.delays".to_owned());
    }
    parse(layers, "retry.preset", |text| {
        RetryPolicy::preset(text.trim())
            .ok_or_else(|| format!("use {}", value::or(&RetryPolicy::PRESETS)))
    })
}

/// A preset, and what is set of it by name.
fn breaker(layers: &mut Layers) -> Result<BreakerPolicy, Failure> {
    let presets = [("quick", ("10", "5s", "1h")), ("patient", ("10", "5m", "1h"))];
    let (threshold, cooldown, cooldown_max) =
        parse(layers, "breaker.preset", |text| value::choice(text, &presets))?;
    layers.derive("breaker.failure_threshold", threshold.to_owned(), "breaker.preset");
    layers.derive("breaker.cooldown", cooldown.to_owned(), "breaker.preset");
    layers.derive("breaker.cooldown_max", cooldown_max.to_owned(), "breaker.preset");
    let failure_threshold = parse(layers, "breaker.failure_threshold", |text| {
        value::number(text, 1, 1_000_000).map(|value| u32::try_from(value).unwrap_or(u32::MAX))
    })?;
    let cooldown_max = parse(layers, "breaker.cooldown_max", |text| {
        value::duration_within(text, Duration::from_millis(10), DAY)
    })?;
    let cooldown = parse(layers, "breaker.cooldown", |text| {
        value::duration_within(text, Duration::from_millis(10), cooldown_max)
            .map_err(|hint| format!("{hint} (`breaker.cooldown_max`)"))
    })?;
    Ok(BreakerPolicy { failure_threshold, cooldown, cooldown_max })
}
