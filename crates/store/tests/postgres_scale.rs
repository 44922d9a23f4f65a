//! Claims on a large database: what they cost does not depend on what waits elsewhere, and many at
//! once do not wait in a circle.
//!
//! `POSTHASTE_SCALE_DELIVERIES` sets how many deliveries wait for one endpoint (100,000).

#![expect(clippy::unwrap_used, clippy::panic, reason = "test code")]

#[path = "common/database.rs"]
mod database;

use database::{Database, NOW};
use posthaste_core::breaker::BreakerPolicy;
use posthaste_core::id::{EndpointId, WorkerId};
use posthaste_core::lane::LaneRules;
use posthaste_store::conformance::World;
use posthaste_store::outbox::{Claim, Claimed};
use posthaste_store::{Outbox, PostgresStore, Upkeep};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio_postgres::Client;

const OTHERS: i64 = 5_000;
const OPEN: i64 = 500;

/// Everything is a copy of one application, endpoint and message that the store made itself.
/// `test_id(0)` has the backlog, those up to `OTHERS` have three deliveries each, of the next
/// `OPEN` the breaker is open and of as many more the rate limit is used up.
const FILL: &str = "
    CREATE FUNCTION test_id(number bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS
    $$ SELECT ('018bcfe5-6800-7000-9000-' || lpad(to_hex(number), 12, '0'))::uuid $$;
    ALTER TABLE posthaste.delivery SET (autovacuum_enabled = off);
    CREATE TABLE made AS SELECT application_id, endpoint_id FROM posthaste.lane;
    INSERT INTO posthaste.application
    SELECT (jsonb_populate_record(one, jsonb_build_object(
        'id', test_id(number), 'uid', NULL, 'throttle_rate', 1000))).*
    FROM posthaste.application AS one, generate_series(1, THROTTLED) AS number;
    INSERT INTO posthaste.endpoint
    SELECT (jsonb_populate_record(one, jsonb_build_object(
        'id', test_id(number), 'uid', NULL, 'application_id',
        CASE WHEN THROTTLED > 0 THEN test_id(1 + number % greatest(THROTTLED, 1))
            ELSE one.application_id END
    ))).*
    FROM posthaste.endpoint AS one, generate_series(0, LAST) AS number;
    INSERT INTO posthaste.lane
    SELECT (jsonb_populate_record(one, jsonb_build_object(
        'endpoint_id', test_id(number),
        'application_id',
        CASE WHEN THROTTLED > 0 THEN test_id(1 + number % greatest(THROTTLED, 1))
            ELSE one.application_id END,
        'next_due_at', CASE WHEN number > OTHERS THEN LATER WHEN number = 0 THEN DUE - 9
            ELSE DUE + (random() * 1000)::int8 END,
        'breaker', CASE WHEN number > OTHERS AND number <= OTHERS + OPEN THEN 1 ELSE 0 END,
        'breaker_until', CASE WHEN number > OTHERS AND number <= OTHERS + OPEN THEN LATER ELSE 0 END
    ))).*
    FROM posthaste.lane AS one, generate_series(0, LAST) AS number;
    INSERT INTO posthaste.message
    SELECT (jsonb_populate_record(one, jsonb_build_object(
        'id', test_id(number), 'event_id', NULL))).*
    FROM posthaste.message AS one, generate_series(1, 1000) AS number;
    CREATE TABLE delivery_of (endpoint bigint, message bigint);
    INSERT INTO delivery_of SELECT 0, number FROM generate_series(1, BACKLOG) AS number;
    INSERT INTO delivery_of
    SELECT endpoint, message FROM generate_series(1, LAST) AS endpoint,
        generate_series(1, 3) AS message;
    INSERT INTO posthaste.delivery
    SELECT (jsonb_populate_record(one, jsonb_build_object(
        'endpoint_id', test_id(endpoint), 'message_id', test_id(1 + message % 1000),
        'due_at', DUE + message))).*
    FROM posthaste.delivery AS one, delivery_of WHERE endpoint > 0;
    INSERT INTO posthaste.delivery (endpoint_id, message_id, application_id, state, class, due_at,
        attempts, plan_attempts, trigger, lease_number, accepted_at, reopened)
    SELECT test_id(0), test_id(message), application_id, 0, class, DUE + message, 0, 0, trigger, 0,
        accepted_at, false
    FROM posthaste.delivery AS one, delivery_of
    WHERE endpoint = 0 AND one.endpoint_id = (SELECT endpoint_id FROM made);
    DELETE FROM posthaste.delivery WHERE endpoint_id = (SELECT endpoint_id FROM made);
    UPDATE posthaste.lane SET next_due_at = NULL
    WHERE endpoint_id = (SELECT endpoint_id FROM made);
";

struct Filled {
    database: Database,
}

impl Filled {
    /// So many deliveries for the one; so many applications of the others have a rate limit.
    async fn new(backlog: i64, throttled: i64) -> Self {
        let database = Database::new().await;
        let store = database.open().await;
        World::on(store.clone()).leave_due().await;
        store.close().await.unwrap();
        drop(store);
        let at = |seconds: i64| (NOW.as_micros() + seconds * 1_000_000).to_string();
        let fill = FILL
            .replace("BACKLOG", &backlog.to_string())
            .replace("THROTTLED", &throttled.to_string())
            .replace("LATER", &at(3_600))
            .replace("DUE", &at(-3_600))
            .replace("LAST", &(OTHERS + 2 * OPEN).to_string())
            .replace("OTHERS", &OTHERS.to_string())
            .replace("OPEN", &OPEN.to_string());
        database.client().await.batch_execute(&fill).await.unwrap();
        Self { database }
    }

    /// Rows of a table that were read, and pages of it and its indexes that were visited, so far.
    /// A session reports when it ends.
    async fn visited(&self, table: &str) -> [i64; 2] {
        let client = self.alone().await;
        let sql = "SELECT seq_tup_read + idx_tup_fetch,
                heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit
            FROM pg_stat_user_tables JOIN pg_statio_user_tables USING (relid)
            WHERE relid = $1::text::regclass";
        let row = client.query_one(sql, &[&table]).await.unwrap();
        [row.get(0), row.get(1)]
    }

    /// The only session that is left.
    async fn alone(&self) -> Client {
        let client = self.database.client().await;
        let others = "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid()
                      AND datname = current_database() AND backend_type = 'client backend'";
        while client.query_one(others, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            tokio::task::yield_now().await;
        }
        client
    }

    async fn count(&self, sql: &str) -> i64 {
        self.alone().await.query_one(sql, &[]).await.unwrap().get(0)
    }
}

fn ask(worker: u8, full: Vec<(EndpointId, u32)>) -> Claim {
    Claim {
        worker_id: WorkerId::from_bytes([worker; 16]),
        now: NOW,
        lease_for: Duration::from_secs(75),
        deliveries_max: 256,
        lane_max: 32,
        full,
        rules: LaneRules {
            breaker: BreakerPolicy {
                failure_threshold: 10,
                cooldown: Duration::from_secs(5),
                cooldown_max: Duration::from_secs(3_600),
            },
            disable_after: None,
            in_flight_max: 64,
        },
    }
}

fn endpoints(claimed: &Claimed) -> BTreeSet<EndpointId> {
    claimed.lanes.iter().map(|lane| lane.endpoint.id).collect()
}

/// What a claim reads is bounded by what it gives, whatever waits for the one and for those that
/// may not go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_of_one_costs_a_claim_for_the_others_nothing() {
    let backlog = std::env::var("POSTHASTE_SCALE_DELIVERIES");
    let backlog = backlog.map_or(100_000, |text| text.parse().unwrap());
    let filled = Filled::new(backlog, 0).await;
    let noisy = {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&[0x01, 0x8b, 0xcf, 0xe5, 0x68, 0x00, 0x70, 0x00]);
        bytes[8] = 0x90;
        EndpointId::from_bytes(bytes)
    };
    // Each change of a row is another transaction's.
    let may_not = format!(
        "SELECT count(DISTINCT xmin::text) FROM posthaste.delivery
         WHERE endpoint_id > test_id({OTHERS})"
    );
    // Where the one is full at this worker, and where it is not.
    for full in [vec![(noisy, 0)], vec![]] {
        let has_room = full.is_empty();
        let [rows_before, pages_before] = filled.visited("posthaste.delivery").await;
        let store = filled.database.open().await;
        let claimed = store.claim(ask(1, full)).await.unwrap();
        store.close().await.unwrap();
        drop(store);
        let [rows, pages] = filled.visited("posthaste.delivery").await;
        let (rows, pages) = (rows - rows_before, pages - pages_before);
        let given: usize = claimed.lanes.iter().map(|lane| lane.deliveries.len()).sum();
        assert_eq!(given, 256);
        let found = endpoints(&claimed);
        assert_eq!(found.contains(&noisy), has_room);
        assert!(found.len() > 50, "{} endpoints", found.len());
        println!("{backlog} wait for one: a claim of {given} reads {rows} rows, {pages} pages");
        assert!(rows < 2_500, "{rows} rows");
        assert!(pages < 15_000, "{pages} pages");
    }
    assert_eq!(filled.count(&may_not).await, 1, "those that may not go were touched");
}

/// Claims that take the limiters of many applications in several rounds, each in another order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_at_once_do_not_wait_in_a_circle() {
    const ROUNDS: u64 = 12;
    let filled = Filled::new(0, 40).await;
    for round in 0..ROUNDS {
        let mut claims = tokio::task::JoinSet::new();
        let mut stores: Vec<std::sync::Arc<PostgresStore>> = Vec::new();
        for worker in 0..3 {
            let store = filled.database.open().await;
            stores.push(store.clone());
            // The limits fill up again.
            let now = NOW.after(Duration::from_secs(60 * round));
            let claim = Claim { now, ..ask(worker, Vec::new()) };
            claims.spawn(async move { store.claim(claim).await });
        }
        let mut given = 0;
        while let Some(claimed) = claims.join_next().await {
            let claimed = claimed.unwrap().unwrap();
            given += claimed.lanes.iter().map(|lane| lane.deliveries.len()).sum::<usize>();
        }
        assert!(given > 0, "round {round} brought nothing");
        for store in stores {
            store.close().await.unwrap();
        }
        let again = format!(
            "UPDATE posthaste.lane SET next_due_at = {} + (random() * 1000)::int8
             WHERE next_due_at IS NOT NULL AND endpoint_id <= test_id({OTHERS})",
            NOW.as_micros() - 3_600_000_000
        );
        filled.alone().await.batch_execute(&again).await.unwrap();
    }
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(filled.count(deadlocks).await, 0);
}
