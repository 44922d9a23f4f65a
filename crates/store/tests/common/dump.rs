//! What a store holds, in one form for both: each row of each table as a line of text, sorted.
//!
//! Ids and bytes are hexadecimal digits, truth is 1 or 0, NULL is `~`. What is not compared:
//!
//! * SQLite's `seq` columns and lists of them: how it keeps its history in order, not what is in
//!   it. What is read through them is compared by who calls the traits.
//! * An application's limiter that was never used: PostgreSQL makes its row when it is.
//! * A worker that is silent or left: SQLite drops its row when its leases come back, PostgreSQL an
//!   hour later, because a transaction of another process may be about to give it one.

use std::collections::BTreeMap;
use tokio_postgres::{Client, SimpleQueryMessage};

/// Tables with the columns that are compared.
const TABLES: [(&str, &str); 14] = [
    (
        "application",
        "id, organisation_id, uid, name, throttle_rate, metadata, routes_version, created_at, \
         updated_at, deleted_at",
    ),
    (
        "endpoint",
        "id, application_id, uid, url, description, disabled, event_types, channels, \
         throttle_rate, version, metadata, headers, secrets, policy, created_at, updated_at, \
         deleted_at",
    ),
    (
        "event_type",
        "organisation_id, name, description, archived, deprecated, schemas, feature_flag, \
         group_name, created_at, updated_at",
    ),
    (
        "lane",
        "endpoint_id, application_id, state, sweep, endpoint_version, next_due_at, breaker, \
         breaker_until, consecutive_failures, cooldown, quiet_until, ramp, failing_since, \
         last_failure_at, last_success_at, warned_percent, limiter_next_at, p95_ms",
    ),
    (
        "message",
        "application_id, id, event_id, event_type, channels, payload, created_at, expires_at",
    ),
    (
        "delivery",
        "endpoint_id, message_id, application_id, state, class, due_at, attempts, plan_attempts, \
         trigger, planned_at, lease_number, lease_worker, lease_until, accepted_at, last_status, \
         reopened",
    ),
    (
        "ended",
        "endpoint_id, message_id, application_id, state, cause, attempts, lease_number, \
         accepted_at, ended_at, last_status",
    ),
    (
        "attempt",
        "message_id, id, endpoint_id, number, trigger, started_at, url, status, retry_after, \
         body, body_cut, failure, failure_phase, failure_detail, dns, connect, tls, first_byte, \
         total, remote, verdict, next_attempt_at",
    ),
    ("tally", "minute, worker_id, delivered, failed, failed_attempts, timed, delivery_time"),
    ("window_sketch", "scope, endpoint_id, start, worker_id, sketch"),
    (
        "idempotency",
        "key_hash, request_hash, state, message_id, status, body, takeover_at, expires_at",
    ),
    (
        "task",
        "id, endpoint_id, since, until, states, rate_per_second, status, replayed, skipped, \
         cursor, paced_until, created_at, updated_at",
    ),
    ("notice", "id, application_id, endpoint_id, kind, detail"),
    ("worker", "id, heartbeat_at"),
];

/// Rows by table.
pub type Dump = BTreeMap<&'static str, Vec<String>>;

/// Workers count as silent that were not heard of since then.
pub fn of_sqlite(path: &std::path::Path, silent_since: i64) -> Dump {
    let database = rusqlite::Connection::open(path).unwrap();
    let mut dump = Dump::new();
    let mut read = |table: &'static str, sql: &str| {
        let mut statement = database.prepare(sql).unwrap();
        let columns = statement.column_count();
        let rows = statement.query_map([], |row| {
            let value = |column| row.get_ref(column).map(text_of);
            Ok((0..columns).map(value).collect::<Result<Vec<_>, _>>()?.join("|"))
        });
        let mut rows: Vec<String> = rows.unwrap().collect::<Result<_, _>>().unwrap();
        rows.sort_unstable();
        dump.insert(table, rows);
    };
    for (table, columns) in TABLES {
        let only = match table {
            "worker" => format!(" WHERE heartbeat_at >= {silent_since}"),
            _ => String::new(),
        };
        // What is over all endpoints has no endpoint there and one of zeros here.
        let columns = match table {
            "window_sketch" => columns.replacen(
                "endpoint_id",
                "iif(endpoint_id = x'', zeroblob(16), endpoint_id)",
                1,
            ),
            _ => columns.to_owned(),
        };
        read(table, &format!("SELECT {columns} FROM {table}{only}"));
    }
    read("limiter", "SELECT id, limiter_next_at FROM application WHERE limiter_next_at <> 0");
    let events = "SELECT application_id, event_id, id FROM message WHERE event_id IS NOT NULL";
    read("event", events);
    dump
}

fn text_of(value: rusqlite::types::ValueRef<'_>) -> String {
    use rusqlite::types::ValueRef;
    match value {
        ValueRef::Null => "~".to_owned(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
        ValueRef::Blob(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

/// See `of_sqlite`.
pub async fn of_postgres(client: &Client, silent_since: i64) -> Dump {
    let kinds = "SELECT table_name::text, column_name::text, data_type::text
        FROM information_schema.columns WHERE table_schema = 'posthaste'";
    let kinds: BTreeMap<(String, String), String> = client
        .query(kinds, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| ((row.get(0), row.get(1)), row.get(2)))
        .collect();
    let form =
        |table: &str, column: &str| match kinds[&(table.to_owned(), column.to_owned())].as_str() {
            "uuid" => format!("encode(uuid_send({column}), 'hex')"),
            "bytea" => format!("encode({column}, 'hex')"),
            "boolean" => format!("({column}::int)::text"),
            _ => format!("{column}::text"),
        };
    let mut dump = Dump::new();
    let events = ("event", "application_id, event_id, message_id");
    let limiters = ("application_limiter", "application_id, next_at");
    for (table, columns) in TABLES.into_iter().chain([events, limiters]) {
        let only = match table {
            "worker" => format!(" WHERE heartbeat_at >= {silent_since}"),
            "application_limiter" => " WHERE next_at <> 0".to_owned(),
            _ => String::new(),
        };
        let columns: Vec<String> = columns.split(", ").map(|column| form(table, column)).collect();
        let sql = format!(
            "SELECT array_to_string(ARRAY[{}], '|', '~') FROM posthaste.{table}{only}",
            columns.join(", ")
        );
        let mut rows = Vec::new();
        for message in client.simple_query(&sql).await.unwrap() {
            if let SimpleQueryMessage::Row(row) = message {
                rows.push(row.get(0).unwrap().to_owned());
            }
        }
        rows.sort_unstable();
        dump.insert(if table == "application_limiter" { "limiter" } else { table }, rows);
    }
    dump
}

/// The lines in which two dumps differ; `-` SQLite's, `+` PostgreSQL's. Empty: they are the same.
pub fn difference(sqlite: &Dump, postgres: &Dump) -> String {
    let mut lines = String::new();
    for (table, ours) in sqlite {
        let theirs = &postgres[table];
        let only = |these: &[String], those: &[String], mark: char| {
            let missing = these.iter().filter(|line| !those.contains(line));
            missing.map(|line| format!("{mark} {table}: {line}\n")).collect::<String>()
        };
        if ours != theirs {
            lines += &only(ours, theirs, '-');
            lines += &only(theirs, ours, '+');
            let counts = (ours.len(), theirs.len());
            lines += &format!("  {table}: {} and {} rows\n", counts.0, counts.1);
        }
    }
    lines
}
