//! Every query is prepared against the migrated schema, and the hot ones walk the index they are
//! meant to walk: nothing is scanned or sorted that grows with the backlog or the history.

use super::open::open;
use super::{SqliteOptions, catalog, history, lanes, upkeep};
use crate::queries::Directed;
use rusqlite::Connection;
use tempfile::TempDir;

const LANES: u32 = 200;
const DELIVERIES: u32 = 20_000;

/// A database with a backlog, some of it leased and held, and a history. A plan must not depend
/// on whether somebody has analyzed it.
fn filled(analyzed: bool) -> (TempDir, Connection) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("posthaste.db");
    let connection = open(&path, SqliteOptions::default(), 1).unwrap().writing;
    connection
        .execute_batch(&format!(
            "BEGIN;
             CREATE TEMP TABLE n AS
                 WITH RECURSIVE n (i) AS (
                     SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT {DELIVERIES}
                 )
                 SELECT i, CAST(printf('e%015d', i % {LANES}) AS BLOB) AS e,
                     CAST(printf('m%015d', i) AS BLOB) AS m, x'41' AS a FROM n;
             INSERT INTO application (id, organisation_id, name, metadata, routes_version,
                 limiter_next_at, created_at, updated_at)
                 VALUES (x'41', 'org_one', 'x', '{{}}', 1, 0, 0, 0);
             INSERT INTO application (id, organisation_id, uid, name, metadata, routes_version,
                 limiter_next_at, created_at, updated_at)
                 SELECT m, 'org_' || i % 9, 'u' || i, 'x', '{{}}', 1, 0, 0, 0 FROM n
                 WHERE i < 500;
             INSERT INTO event_type (organisation_id, name, description, archived, deprecated,
                 created_at, updated_at)
                 SELECT 'org_' || i % 9, 'n' || i, '', 0, 0, 0, 0 FROM n WHERE i < 500;
             INSERT INTO endpoint (id, application_id, uid, url, description, version, metadata,
                 headers, secrets, policy, created_at, updated_at)
                 SELECT e, a, 'u' || i, 'https://x.example/', '', 1, '{{}}', '[]', '{{}}', '{{}}',
                     0, 0 FROM n WHERE i < {LANES};
             INSERT INTO lane (endpoint_id, application_id, state, sweep, endpoint_version,
                 next_due_at, breaker, breaker_until, consecutive_failures, cooldown,
                 warned_percent, limiter_next_at, p95_ms)
                 SELECT e, a, 0, 0, 1, i, 0, 0, 0, 0, 0, 0, 0 FROM n WHERE i < {LANES};
             INSERT INTO message (application_id, id, event_type, payload, created_at, expires_at)
                 SELECT a, m, 'x', x'00', i, i FROM n;
             INSERT INTO worker (id, heartbeat_at, locks) VALUES (x'01', 0, 0);
             INSERT INTO delivery (endpoint_id, message_id, application_id, state, class, due_at,
                 attempts, plan_attempts, trigger, lease_number, lease_worker, lease_until,
                 accepted_at, reopened, message_seq)
                 SELECT e, m, a, CASE i % 50 WHEN 0 THEN 1 WHEN 1 THEN 2 ELSE 0 END, i % 4, i,
                     0, 0, 0, 0, iif(i % 50 = 0, x'01', NULL), i, i, 0, i + 1 FROM n;
             INSERT INTO ended (endpoint_id, message_id, application_id, state, attempts,
                 lease_number, accepted_at, ended_at)
                 SELECT e, m, a, iif(i % 10 = 0, 4, 3), 1, 1, i, i FROM n;
             INSERT INTO attempt (message_id, id, endpoint_id, number, trigger, started_at, url,
                 body_cut, total, verdict)
                 SELECT m, m, e, 1, 0, i, 'x', 0, 1, 'delivered' FROM n;
             INSERT INTO message_list SELECT application_id, id, seq FROM message;
             INSERT INTO ended_list SELECT endpoint_id, message_id, seq FROM ended;
             INSERT INTO attempt_list SELECT endpoint_id, id, seq FROM attempt;
             INSERT INTO message_attempt_list SELECT message_id, id, seq FROM attempt;
             INSERT INTO expiry_list SELECT expires_at, seq FROM message;
             UPDATE listed SET (message_seq, ended_seq, attempt_seq) =
                 (SELECT max(seq), max(seq), max(seq) FROM message);
             COMMIT;"
        ))
        .unwrap();
    if analyzed {
        connection.execute_batch("ANALYZE").unwrap();
    }
    (folder, connection)
}

fn plan(connection: &Connection, sql: &str) -> Vec<String> {
    let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let mut rows = statement.raw_query();
    let mut steps = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        steps.push(row.get(3).unwrap());
    }
    steps
}

type Group = (&'static str, &'static [(&'static str, &'static str)]);

fn groups() -> [Group; 4] {
    [
        (lanes::sql::TEXT, lanes::sql::ALL),
        (catalog::sql::TEXT, catalog::sql::ALL),
        (history::sql::TEXT, history::sql::ALL),
        (upkeep::sql::TEXT, upkeep::sql::ALL),
    ]
}

#[test]
fn every_query_is_valid_and_has_a_constant() {
    let (_folder, connection) = filled(false);
    for (text, queries) in groups() {
        assert_eq!(text.matches("-- name: ").count(), queries.len());
        for (name, sql) in queries {
            if let Err(error) = connection.prepare(sql) {
                panic!("{name}: {error}");
            }
        }
    }
}

/// Queries that look at a whole table, and why that is fine.
const WALKS: &[(&str, &str)] = &[
    ("WORKERS", "there are few workers"),
    ("STATUS_WORKERS", "there are few workers"),
    ("LANE_LEASED", "there are few workers"),
    ("STATUS_LANES", "there are as many lanes as endpoints"),
    ("STATUS_OPEN", "the status counts what is open"),
    ("STATUS_OLDEST", "the status looks for the oldest of what is open"),
    ("STATUS_DEAD", "the status counts what is dead, in an index of nothing else"),
    ("TASK_NEXT", "an index of nothing but running tasks"),
    ("SWEEP_NEXT", "an index of nothing but lanes to be swept"),
    ("NOTICES_ALL", "in the order of the primary key, up to a limit"),
    ("LISTS_BEHIND", "the one row that it reads"),
    ("LIST_MESSAGES", "a bounded batch is sorted"),
    ("LIST_ENDED", "a bounded batch is sorted"),
    ("LIST_ATTEMPTS", "a bounded batch is sorted"),
    ("LIST_ATTEMPTS_OF_MESSAGES", "a bounded batch is sorted"),
    ("LIST_EXPIRIES", "a bounded batch is sorted"),
    ("FORGET_DONE", "the one row that it changes"),
    ("LISTS_ADVANCE", "the one row that it changes"),
    ("CHECK", "the number of pages is known"),
    ("CHECK_WRITE", "no id is null"),
];

#[test]
fn nothing_is_scanned_or_sorted() {
    for analyzed in [false, true] {
        let (_folder, connection) = filled(analyzed);
        for (_, queries) in groups() {
            for (name, sql) in queries {
                let plan = plan(&connection, sql);
                let bad = plan.iter().find(|step| {
                    let scans = step.starts_with("SCAN")
                        && !step.contains("json_each")
                        && *step != "SCAN CONSTANT ROW";
                    scans || step.contains("TEMP B-TREE") || step.contains("AUTOMATIC")
                });
                let allowed = WALKS.iter().any(|(walk, _)| walk == name);
                assert!(bad.is_none() || allowed, "{name}: {plan:#?}");
            }
        }
    }
}

#[test]
fn hot_queries_walk_their_index() {
    for analyzed in [false, true] {
        let (_folder, connection) = filled(analyzed);
        for (name, sql, index) in [
            ("lanes_due", lanes::sql::LANES_DUE, "lane USING INDEX lane_due (next_due_at<?)"),
            ("lanes_next", lanes::sql::LANES_NEXT, "lane USING COVERING INDEX lane_due"),
            (
                "waiting_of_class",
                lanes::sql::WAITING_OF_CLASS,
                "INDEX delivery_due (endpoint_id=? AND class=? AND due_at<?)",
            ),
            (
                "waiting_next",
                lanes::sql::WAITING_NEXT,
                "INDEX delivery_due (endpoint_id=? AND class=?)",
            ),
            (
                "lane_leased",
                lanes::sql::LANE_LEASED,
                "INDEX delivery_lease (lease_worker=? AND endpoint_id=?)",
            ),
            (
                "event_find",
                lanes::sql::EVENT_FIND,
                "message_event (application_id=? AND event_id=?)",
            ),
            (
                "claim_message",
                lanes::sql::CLAIM_MESSAGE,
                "message USING INTEGER PRIMARY KEY (rowid=?)",
            ),
            (
                "delivery_end",
                lanes::sql::DELIVERY_END,
                "PRIMARY KEY (endpoint_id=? AND message_id=?)",
            ),
            ("leases_of", upkeep::sql::LEASES_OF, "delivery_lease (lease_worker=?)"),
            ("leases_expired", upkeep::sql::LEASES_EXPIRED, "delivery_lease (lease_worker=?)"),
            ("sweep_next", upkeep::sql::SWEEP_NEXT, "lane_sweep"),
            (
                "replay_dead",
                upkeep::sql::REPLAY_DEAD,
                "ended_dead (endpoint_id=? AND message_id>? AND message_id<?)",
            ),
            (
                "replay_held",
                upkeep::sql::REPLAY_HELD,
                "delivery_held (endpoint_id=? AND message_id>? AND message_id<?)",
            ),
            (
                "prune_payloads",
                upkeep::sql::PRUNE_PAYLOADS,
                "expiry_list USING PRIMARY KEY (expires_at<?)",
            ),
            ("health_held", history::sql::HEALTH_HELD, "delivery_held (endpoint_id=?)"),
            (
                "attempts_of_endpoint",
                history::sql::ATTEMPTS_OF_ENDPOINT,
                "list USING PRIMARY KEY (endpoint_id=? AND id>? AND id<?)",
            ),
        ] {
            let plan = plan(&connection, sql).join("\n");
            assert!(plan.contains(index), "{name} does not walk {index}: {plan}");
        }
    }
}

#[test]
fn lists_walk_both_ways() {
    for analyzed in [false, true] {
        let (_folder, connection) = filled(analyzed);
        let list: &'static Directed =
            Box::leak(Box::new(Directed::new(history::sql::MESSAGES_OF_ENDPOINT)));
        assert_ne!(list.sql(true), list.sql(false));
        for (_, queries) in groups() {
            for (name, sql) in queries.iter().filter(|(_, sql)| sql.contains(" ASC")) {
                let plan = plan(&connection, &sql.replace(" ASC", " DESC"));
                assert!(!plan.iter().any(|step| step.contains("TEMP B-TREE")), "{name}: {plan:#?}");
            }
        }
    }
}
