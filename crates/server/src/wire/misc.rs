//! Small bodies: secrets, headers, recovery, tokens, health, status.

use crate::wire::application::ApplicationIn;
use crate::wire::time::Time;
use schemars::JsonSchema;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

/// The pairs of a JSON object in the order they were written.
#[derive(Debug)]
pub(crate) struct Pairs<T>(pub Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for InOrder<T> {
            type Value = Pairs<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<T>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(InOrder(PhantomData))
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EndpointSecretOut")]
pub(crate) struct SecretOut {
    /// `whsec_...`, or the public key `whpk_...`: what a receiver verifies with.
    pub key: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "EndpointSecretRotateIn")]
pub(crate) struct RotateIn {
    /// The new secret; made by the server if absent.
    pub key: Option<String>,
    /// For how many seconds the old secret still signs beside the new one: 0 to 604,800, 86,400
    /// if absent.
    pub grace_period_seconds: Option<i64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "EndpointHeadersIn")]
pub(crate) struct HeadersIn {
    #[schemars(with = "BTreeMap<String, String>")]
    pub headers: Pairs<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "EndpointHeadersPatchIn")]
pub(crate) struct HeadersPatchIn {
    /// `null` removes a header.
    #[schemars(with = "BTreeMap<String, Option<String>>")]
    pub headers: Pairs<Option<String>>,
    /// Names of headers to remove.
    #[serde(default)]
    pub delete_headers: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EndpointHeadersOut")]
pub(crate) struct HeadersOut {
    pub headers: BTreeMap<String, String>,
    /// Names of those whose values are withheld.
    pub sensitive: Vec<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct RecoverIn {
    pub since: Time,
    /// Now, if absent.
    pub until: Option<Time>,
}

/// To replay deliveries of an endpoint.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReplayIn {
    /// Messages accepted from then on.
    pub since: Time,
    /// Up to then, exclusive; now, if absent.
    pub until: Option<Time>,
    /// `dead_letter`, `held` or both; `dead_letter` if absent.
    pub states: Option<Vec<String>>,
    /// At most so many deliveries a second.
    pub rate_per_second: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "BackgroundTaskOut")]
pub(crate) struct TaskOut {
    pub id: String,
    /// `running` or `finished`.
    pub status: String,
    pub task: String,
    pub updated_at: Time,
    pub data: TaskData,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TaskData {
    pub endpoint_id: String,
    /// Deliveries replayed so far.
    pub replayed: u64,
    /// The same, by the name that the client libraries document.
    pub messages_sent: u64,
    /// Deliveries passed over because the payload is gone.
    pub skipped: u64,
    pub since: Time,
    pub until: Time,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "AppPortalAccessIn")]
pub(crate) struct PortalIn {
    pub feature_flags: Option<Vec<String>>,
    /// Creates the application if there is none; its `uid` must be the one in the path.
    pub application: Option<ApplicationIn>,
    /// Seconds for which the token holds: at most 2,419,200 (28 days); 604,800 (7 days) if absent.
    pub expiry: Option<u64>,
    /// The token may look but not change anything.
    pub read_only: Option<bool>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AppPortalAccessOut")]
pub(crate) struct PortalOut {
    pub url: String,
    pub token: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct HealthOut {
    pub database: DatabaseHealth,
    pub queue: HealthPart,
    pub cache: HealthPart,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct HealthPart {
    /// `ok` or `error`.
    pub status: &'static str,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct DatabaseHealth {
    /// `ok` or `error`.
    pub status: &'static str,
    /// Why it cannot be used, for programs: `unreachable`, `silent`, `starting`, `connections`,
    /// `busy`, `disk_full`, `locked`, `slow`, `read_only`, `refused` or `failing`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// The same for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<&'static str>,
    /// What will go wrong unless somebody sees to it: `transaction_ids`, `old_snapshot`,
    /// `clock_skew`. The status and the log say more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<&'static str>,
}

/// What will go wrong unless somebody sees to it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct WarningOut {
    /// `transaction_ids`, `old_snapshot` or `clock_skew`.
    pub code: &'static str,
    /// What it is, who is at fault, the way out.
    pub detail: String,
}

/// The one row that tells how everything stands.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct StatusOut {
    pub pending: u64,
    pub awaiting_retry: u64,
    pub in_flight: u64,
    pub dead_letter: u64,
    pub held: u64,
    pub delivered_last_hour: u64,
    /// Deliveries given up in the last hour, by the time they were given up.
    pub failed_last_hour: u64,
    pub failed_attempts_last_hour: u64,
    pub oldest_undelivered: Option<OldestOut>,
    /// From accepted to delivered, of the last hour.
    pub delivery_time_ms: DeliveryTimeOut,
    pub breakers_open: u64,
    pub endpoints_disabled: u64,
    pub workers: u64,
    /// Of the database.
    pub warnings: Vec<WarningOut>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OldestOut {
    pub message_id: String,
    pub endpoint_id: String,
    pub accepted_at: Time,
    pub age_seconds: u64,
}

/// `null` without samples.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct DeliveryTimeOut {
    pub average: Option<f64>,
    pub p50: Option<f64>,
    pub p95: Option<f64>,
    pub p99: Option<f64>,
    pub count: u64,
}

/// How an endpoint does.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EndpointHealthOut {
    pub endpoint_id: String,
    /// `closed`, `open` or `half_open`.
    pub breaker: &'static str,
    pub consecutive_failures: u32,
    /// The cooldown in force or last in force; 0 when the breaker closed since.
    pub cooldown_seconds: f64,
    /// When the breaker lets the next probe through.
    pub next_probe_at: Option<Time>,
    /// Latency of attempts over the last 24 h; `null` without samples.
    pub p50_ms: Option<f64>,
    pub p95_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub samples: u64,
    /// P95 is above 2 s.
    pub slow: bool,
    /// Deliveries that wait for an attempt.
    pub waiting: u64,
    /// Deliveries that wait for a human.
    pub held: u64,
    pub disabled: Option<super::endpoint::DisabledReasonOut>,
    pub failing_since: Option<Time>,
    pub last_success_at: Option<Time>,
    pub last_failure_at: Option<Time>,
    /// The receiver asked for quiet until then.
    pub quiet_until: Option<Time>,
    /// While it recovers: how many deliveries may be in flight.
    pub ramp: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeadLetterOut {
    pub msg_id: String,
    pub endpoint_id: String,
    pub app_id: String,
    pub attempts: u32,
    pub accepted_at: Time,
    pub ended_at: Option<Time>,
    /// Why it was given up.
    pub cause: Option<String>,
    /// Status of the last complete answer.
    pub last_status: Option<u16>,
}

/// An answer that says nothing but that it was done.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EmptyResponse")]
pub(crate) struct Empty {}
