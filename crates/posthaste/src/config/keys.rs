//! Every key there is: the one list that files, environment, flags, `posthaste config` and the
//! documentation go by.

use super::database::without_password;
use super::layers::MASK;

/// A key of the configuration.
pub struct Key {
    /// Dotted, as in `posthaste.toml`.
    pub name: &'static str,
    /// `None`: unset unless somebody sets it, or derived from other keys.
    pub default: Option<&'static str>,
    pub about: &'static str,
}

const fn key(name: &'static str, default: Option<&'static str>, about: &'static str) -> Key {
    Key { name, default, about }
}

pub const KEYS: [Key; 32] = [
    key("listen", Some("127.0.0.1:8071"), "Address and port of the API."),
    key("data_dir", Some("./posthaste-data"), "Folder of the database and the secrets."),
    key(
        "database_url",
        None,
        "`sqlite:PATH` or `postgres://…`; by default `posthaste.db` in the data folder.",
    ),
    key(
        "database_direct_url",
        None,
        "The same PostgreSQL server past its pooler; migrations go there.",
    ),
    key("database_connections_max", Some("8"), "Connections of each process to PostgreSQL."),
    key("public_url", None, "Where browsers and clients reach the API; links begin with it."),
    key("queue_url", Some("store"), "What hands deliveries out; only `store` in this version."),
    key("jwt_secret", None, "HS256 key of the API's tokens; made at the first start if unset."),
    key(
        "allowed_networks",
        Some(""),
        "Internal networks, addresses and host names that endpoints may be in; `*` for all.",
    ),
    key("dev", Some("false"), "Also allows receivers on this machine's loopback addresses."),
    key("retry.preset", Some("day"), "Retry policy: `short`, `email` or `day`."),
    key("retry.delays", None, "Waits between attempts, instead of a preset; empty: no retries."),
    key("retry.jitter", Some("0.2"), "How far each of `retry.delays` may move, as a share of it."),
    key("retry.final_statuses", Some(""), "Statuses, beside 410, that are not tried again."),
    key("http.timeout", Some("15s"), "Whole exchange with a receiver, answer's body included."),
    key("http.user_agent", None, "`User-Agent` of deliveries."),
    key("signing.headers", Some("webhook"), "Prefix of headers: `webhook`, `svix` or `both`."),
    key("signing.kind", Some("hmac"), "Secrets made for new endpoints: `hmac` or `ed25519`."),
    key("endpoint.https_only", Some("false"), "Refuses endpoints that are not `https`."),
    key(
        "endpoint.disable_after",
        Some("5d"),
        "Disables an endpoint after so long a time of nothing but failures; `never` for never.",
    ),
    key("breaker.preset", Some("quick"), "`quick` (5 s cooldown) or `patient` (300 s)."),
    key("breaker.failure_threshold", None, "Failures in a row that open the breaker."),
    key("breaker.cooldown", None, "First wait of an open breaker; doubled by failed probes."),
    key("breaker.cooldown_max", None, "Longest wait of an open breaker."),
    key("worker.in_flight_max", Some("1024"), "Requests in flight at once."),
    key("worker.in_flight_per_endpoint_max", Some("64"), "The same, to one endpoint."),
    key("worker.memory_max", Some("64MiB"), "Payload bytes held in memory for delivery."),
    key(
        "worker.metrics_listen",
        None,
        "Address and port of `/metrics` and health in a `worker`; `serve` has them at `listen`.",
    ),
    key(
        "retention.history",
        Some("90d"),
        "How long messages without payload, attempts and ended deliveries are kept, or `never`.",
    ),
    key("log.format", Some("text"), "`text` or `json`."),
    key("log.level", Some("info"), "`error`, `warn`, `info`, `debug` or `trace`."),
    key("shutdown.timeout", Some("20s"), "How long a stop waits for what is in flight."),
];

/// Keys that are planned, so that nobody looks for a typing error.
pub const LATER: [&str; 2] = ["http.proxy", "http.no_proxy"];

/// Variables with our prefix that are not configuration: for the client commands, and those that
/// Kubernetes sets for a service named `posthaste`.
pub const OTHER_VARIABLES: [&str; 3] = ["POSTHASTE_CONFIG", "POSTHASTE_TOKEN", "POSTHASTE_URL"];
pub const OTHER_PREFIXES: [&str; 4] =
    ["POSTHASTE_PORT", "POSTHASTE_SERVICE_", "POSTHASTE_TEST_", "POSTHASTE_CHAOS_"];

const SECRET: &str = "jwt_secret";
/// Addresses that may hold a password.
const ADDRESSES: [&str; 2] = ["database_url", "database_direct_url"];

pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

impl Key {
    /// The text as it may be shown.
    pub fn masked(&self, text: &str) -> String {
        match self.name {
            SECRET => MASK.to_owned(),
            name if ADDRESSES.contains(&name) => without_password(text),
            _ => text.to_owned(),
        }
    }

    /// `POSTHASTE_RETRY__PRESET` for `retry.preset`.
    pub fn variable(&self) -> String {
        format!("POSTHASTE_{}", self.name.to_ascii_uppercase().replace('.', "__"))
    }
}

/// The known key that is nearest to a mistyped one, if any is near.
pub fn nearest(name: &str) -> Option<&'static str> {
    let distance = |key: &Key| edits(name, key.name);
    let best = KEYS.iter().min_by_key(|key| distance(key))?;
    (distance(best) <= best.name.len().div_ceil(3)).then_some(best.name)
}

/// Levenshtein's distance in bytes.
fn edits(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_finds_its_key() {
        assert_eq!(nearest("retry.prest"), Some("retry.preset"));
        assert_eq!(nearest("http.time_out"), Some("http.timeout"));
        assert_eq!(nearest("database.url"), Some("database_url"));
        assert_eq!(nearest("xyzzy.plugh.frobnicate"), None);
    }

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<_> = KEYS.iter().map(|key| key.name).collect();
        assert_eq!(names.len(), KEYS.len());
    }
}
