//! Plans of the hot queries on PostgreSQL: on a filled database, with statistics of when it was
//! empty and with fresh ones, each goes by the index that its comment names.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test code")]

use posthaste_core::time::Timestamp;
use posthaste_store::{PostgresOptions, PostgresStore};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, NoTls};

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);
const URL_VARIABLE: &str = "POSTHASTE_TEST_POSTGRES_URL";

const FILES: [(&str, &str); 4] = [
    ("catalog", include_str!("../sql/postgres/catalog.sql")),
    ("history", include_str!("../sql/postgres/history.sql")),
    ("outbox", include_str!("../sql/postgres/outbox.sql")),
    ("upkeep", include_str!("../sql/postgres/upkeep.sql")),
];

/// One endpoint with a backlog of 100,000, and 2,000 with a few deliveries each.
const FILL: &str = "
    INSERT INTO posthaste.lane
        (endpoint_id, application_id, state, sweep, endpoint_version, next_due_at, breaker,
         breaker_until, consecutive_failures, cooldown, warned_percent, limiter_next_at, p95_ms)
    SELECT test_id(lane), test_id(0), 0, 0, 1, lane, 0, 0, 0, 0, 0, 0, 0
    FROM generate_series(0, 2000) AS lane;
    INSERT INTO posthaste.worker (id, heartbeat_at)
    SELECT test_id(worker), 0 FROM generate_series(1, 5) AS worker;
    INSERT INTO posthaste.message
        (application_id, id, event_type, payload, created_at, expires_at)
    SELECT test_id(0), test_id(number), 'order.paid', '\\x01', number, number
    FROM generate_series(1, 110000) AS number;
    INSERT INTO posthaste.delivery
        (endpoint_id, message_id, application_id, state, class, due_at, attempts, plan_attempts,
         trigger, lease_number, lease_worker, lease_until, accepted_at, reopened)
    SELECT test_id(CASE WHEN number <= 100000 THEN 0 ELSE 1 + number % 2000 END),
        test_id(number), test_id(0), CASE WHEN number % 1000 = 0 THEN 1 ELSE 0 END, number % 4,
        number, 0, 0, 0, 0,
        CASE WHEN number % 1000 = 0 THEN test_id(1 + number % 5) END,
        CASE WHEN number % 1000 = 0 THEN 0 END, number, false
    FROM generate_series(1, 110000) AS number;
    INSERT INTO posthaste.ended
        (endpoint_id, message_id, application_id, state, attempts, lease_number, accepted_at,
         ended_at)
    SELECT test_id(number % 2000), test_id(number), test_id(0),
        CASE WHEN number % 100 = 0 THEN 4 ELSE 3 END, 1, 1, number, number
    FROM generate_series(1, 100000) AS number;
    INSERT INTO posthaste.idempotency (key_hash, request_hash, state, expires_at)
    SELECT sha256(number::text::bytea), '\\x00', 1, number
    FROM generate_series(1, 20000) AS number;
    INSERT INTO posthaste.event (application_id, event_id, message_id)
    SELECT test_id(0), number::text, test_id(number) FROM generate_series(1, 20000) AS number;
";

/// Forty applications with fifty endpoints each, and what there is to read of them.
const FILL_READS: &str = "
    INSERT INTO posthaste.endpoint
        (id, application_id, url, description, version, metadata, headers, secrets, policy,
         created_at, updated_at)
    SELECT test_id(number), test_id(number % 40), '', '', 1, '', '', '', '', 0, 0
    FROM generate_series(0, 1999) AS number;
    INSERT INTO posthaste.message
        (application_id, id, event_type, payload, created_at, expires_at)
    SELECT test_id(1 + number % 39), test_id(number), 'order.paid', '\\x01', number, number
    FROM generate_series(110001, 200000) AS number;
    INSERT INTO posthaste.attempt
        (message_id, id, endpoint_id, number, trigger, started_at, url, body_cut, total, verdict)
    SELECT test_id(number), test_id(number), test_id(number % 2000), 1, 0, number, '', false, 1, ''
    FROM generate_series(1, 100000) AS number;
";

/// Ids of the time that partitions were made for.
const TEST_ID: &str = "
    CREATE FUNCTION test_id(number bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS
    $$ SELECT ('018bcfe5-6800-7000-8000-' || lpad(to_hex(number), 12, '0'))::uuid $$;
";

/// As in the pool's `Indexed` and `Walk`.
const INDEXED: &str = "
    SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;
    SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off;
";

/// Query, its parameters as SQL, and the indexes that it must go by (in any partition).
const HOT: [(&str, &str, &[&str]); 21] = [
    ("lanes_due", "100000, 8, array[test_id(5)]", &["lane_due"]),
    ("lanes_next", "3", &["lane_due"]),
    ("lane_find", "array[test_id(1), test_id(2)]", &["lane_pkey"]),
    ("lane_lock", "array[test_id(1), test_id(2)]", &["lane_pkey"]),
    (
        "waiting_of_class",
        "array[test_id(0), test_id(7)], array[0, 0]::int8[], array[100000, 100000]::int8[], \
         array[100, 100]::int8[]",
        &["delivery_due"],
    ),
    ("waiting_next", "array[test_id(0), test_id(7)]", &["delivery_due"]),
    ("lane_waiting", "array[test_id(0), test_id(7)], 100000", &["delivery_due"]),
    ("lane_leased", "array[test_id(0)]", &["delivery_lease"]),
    ("claim_message", "array[test_id(5), test_id(6)], 1000000", &["message_w#_pkey"]),
    (
        "delivery_end",
        "array[test_id(0)], array[test_id(5)], array[1]::int8[], array[test_id(1)]",
        &["delivery_pkey"],
    ),
    (
        "delivery_wait",
        "array[test_id(0)], array[test_id(5)], array[1]::int8[], array[test_id(1)], \
         array[0]::int8[], array[9]::int8[], array[1]::int8[], array[500]::int8[]",
        &["delivery_pkey"],
    ),
    (
        "delivery_lease",
        "array[test_id(0)], array[test_id(5)], array[1]::int8[], test_id(1), 9, \
         array[1]::int8[], array[1]::int8[], array[0]::int8[], array[null]::int8[]",
        &["delivery_pkey"],
    ),
    (
        "delivery_release",
        "array[test_id(0)], array[test_id(5)], array[0]::int8[], 9, true",
        &["delivery_pkey"],
    ),
    ("delivery_find", "array[test_id(0)], array[test_id(5)]", &["delivery_pkey"]),
    ("delivery_remove", "array[test_id(0)], array[test_id(5)]", &["delivery_pkey"]),
    ("leases_of", "test_id(1), 1000", &["delivery_lease"]),
    ("leases_expired", "test_id(1), 1000, 1000", &["delivery_lease"]),
    (
        "replay_dead",
        "test_id(0), test_id(0), test_id(100000), 0, 100000, 500",
        &["ended_w#_endpoint_id_message_id_idx", "message_w#_pkey"],
    ),
    ("idempotency_find", "array[sha256('1')]", &["idempotency_pkey"]),
    ("event_find", "array[test_id(0)], array['17']", &["event_pkey"]),
    ("prune_payloads", "5, 10", &["message_w#_expires_at_idx"]),
];

/// Reads of history, as `HOT`; `after` and `before` stand for the ends of an open walk, `all` for
/// filters of messages that are not set.
const READS: [(&str, &str, &[&str]); 12] = [
    ("message_by_id", "test_id(3), test_id(120003)", &["message_w#_"]),
    ("message_by_event", "test_id(0), '17'", &["event_pkey", "message_w#_pkey"]),
    (
        "messages_page",
        "test_id(3), after, before, 51, all, 1000",
        &["message_w#_application_id_id_idx"],
    ),
    (
        "attempts_of_message",
        "test_id(17), after, before, 51, all, null::bool, null::int8, null::uuid, test_id(0)",
        &["attempt_w#_pkey", "message_w#_"],
    ),
    (
        "attempts_of_endpoint",
        "test_id(17), after, before, 51, all, null::bool, null::int8, null::uuid",
        &["attempt_w#_endpoint_id_id_idx"],
    ),
    (
        "messages_of_endpoint",
        "test_id(17), after, before, 51, all, null::text[], 1000",
        &["delivery_pkey", "ended_w#_pkey", "message_w#_pkey"],
    ),
    (
        "deliveries_of_message",
        "test_id(3), after, before, 51, test_id(17)",
        &["endpoint_page", "delivery_pkey", "ended_w#_pkey"],
    ),
    (
        "dead_letters_page",
        "null::uuid[], after, before, null::int8, null::int8, 51",
        &["ended_w#_message_id_idx", "delivery_pkey"],
    ),
    (
        "dead_letters_of_endpoint",
        "null::uuid[], after, before, null::int8, null::int8, 51, test_id(100)",
        &["ended_w#_endpoint_id_message_id_idx", "delivery_pkey"],
    ),
    ("health_waiting", "test_id(17)", &["delivery_due"]),
    ("delivery_ended", "test_id(17), test_id(17)", &["ended_w#_pkey"]),
    ("request_find", "sha256('1')", &["idempotency_pkey"]),
];

fn url(database: Option<&str>) -> String {
    let server = std::env::var(URL_VARIABLE).unwrap_or_else(|_| {
        panic!("{URL_VARIABLE} is not set; `cargo xtask test` starts a server and sets it")
    });
    let mut url = url::Url::parse(&server).unwrap();
    if let Some(database) = database {
        url.set_path(database);
    }
    url.to_string()
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Runs `check` on a migrated database that is dropped after it.
async fn with_database(name: &str, check: impl AsyncFnOnce(&Client)) {
    let name = format!("posthaste_{name}_{}", std::process::id());
    let admin = connect(&url(None)).await;
    let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
    admin.batch_execute(&drop).await.unwrap();
    let create = format!("CREATE DATABASE {name} TEMPLATE template0");
    admin.batch_execute(&create).await.unwrap();
    let url = url(Some(&name));
    PostgresStore::open(&url, PostgresOptions::default(), NOW).await.unwrap();
    check(&connect(&url).await).await;
    admin.batch_execute(&drop).await.unwrap();
}

/// Names and statements of all files.
fn queries() -> Vec<(String, String)> {
    let mut queries = Vec::new();
    for (file, text) in FILES {
        for block in text.split("-- name: ").skip(1) {
            let (name, rest) = block.split_once('\n').unwrap();
            let lines = rest.lines().skip_while(|line| line.starts_with("--"));
            let statement: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
            queries.push((format!("{file}.{name}"), statement.join("\n")));
        }
    }
    queries
}

fn query(name: &str) -> String {
    let found = queries().into_iter().find(|(full, _)| full.ends_with(&format!(".{name}")));
    found.unwrap_or_else(|| panic!("there is no query {name}")).1
}

#[tokio::test]
async fn every_query_is_understood() {
    with_database("queries", async |client| {
        let mut wrong = Vec::new();
        for (name, sql) in queries() {
            if let Err(error) = client.prepare(&sql).await
                // The store names the types of its parameters; nobody does here.
                && error.code() != Some(&SqlState::AMBIGUOUS_PARAMETER)
                && error.code() != Some(&SqlState::INDETERMINATE_DATATYPE)
            {
                let text = error.as_db_error().map(|error| error.message().to_owned());
                wrong.push(format!("{name}: {}", text.unwrap_or_default()));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(queries().len() > 100);
    })
    .await;
}

/// The plan of a query with these parameters.
async fn plan(client: &Client, name: &str, values: &str) -> String {
    plan_of(client, name, &query(name), values).await
}

async fn plan_of(client: &Client, name: &str, query: &str, values: &str) -> String {
    let mut sql = query.trim_end().trim_end_matches(';').to_owned();
    // From the last to the first, so that $1 does not cut $10.
    let values: Vec<String> = split(values);
    for (index, value) in values.iter().enumerate().rev() {
        let value: &str = value;
        sql = sql.replace(&format!("${}", index + 1), &format!("({value})"));
    }
    let none: [(&(dyn ToSql + Sync), Type); 0] = [];
    let rows = client.query_typed(&format!("EXPLAIN {sql}"), &none).await;
    let rows = rows.unwrap_or_else(|error| panic!("{name}: {error}: {sql}"));
    rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>().join("\n")
}

/// At the commas that are in no brackets.
fn split(values: &str) -> Vec<String> {
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for letter in values.chars() {
        match letter {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().unwrap().push(letter);
    }
    parts
}

/// An index by its name; `#` stands for the number of a partition.
fn goes_by(plan: &str, index: &str) -> bool {
    let (before, after) = index.split_once('#').unwrap_or((index, ""));
    plan.match_indices(before).any(|(at, _)| {
        let rest = plan[at + before.len()..].trim_start_matches(|c: char| c.is_ascii_digit());
        rest.starts_with(after)
    })
}

#[tokio::test]
async fn hot_queries_go_by_their_indexes() {
    with_database("plans", async |client| {
        client.batch_execute(TEST_ID).await.unwrap();
        client.batch_execute(FILL).await.unwrap();
        client.batch_execute(INDEXED).await.unwrap();
        let mut wrong = Vec::new();
        for statistics in ["old", "fresh"] {
            for (name, values, indexes) in HOT {
                let plan = plan(client, name, values).await;
                let by_index = indexes.iter().all(|index| goes_by(&plan, index));
                if !by_index || plan.contains("Seq Scan on") && !plan.contains("Seq Scan on worker")
                {
                    wrong.push(format!("{name} with {statistics} statistics:\n{plan}"));
                }
            }
            client.batch_execute("ANALYZE").await.unwrap();
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    })
    .await;
}

/// With statistics of any age: none reads a table whole that grows.
#[tokio::test]
async fn reads_go_by_their_indexes() {
    with_database("reads", async |client| {
        client.batch_execute(TEST_ID).await.unwrap();
        client.batch_execute(FILL).await.unwrap();
        client.batch_execute(FILL_READS).await.unwrap();
        client.batch_execute(INDEXED).await.unwrap();
        let mut wrong = Vec::new();
        for statistics in ["old", "fresh"] {
            for (name, values, indexes) in READS {
                let values = values
                    .replace("all", "null::text, null::text[], null::int8, null::int8")
                    .replace("after", "'00000000-0000-0000-0000-000000000000'::uuid")
                    .replace("before", "'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid");
                let down = query(name).replace(" ASC", " DESC");
                let plan = plan_of(client, name, &down, &values).await;
                let whole = plan.contains("Seq Scan on");
                if whole || !indexes.iter().all(|index| goes_by(&plan, index)) {
                    wrong.push(format!("{name} with {statistics} statistics:\n{plan}"));
                }
            }
            client.batch_execute("ANALYZE").await.unwrap();
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    })
    .await;
}
