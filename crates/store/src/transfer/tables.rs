//! Which tables are copied, and how each column of the target is read from the source.

/// The type of a column in the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Id,
    Int,
    Flag,
    Text,
    Bytes,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    /// In the target.
    pub name: &'static str,
    pub kind: Kind,
    /// In the source.
    pub read: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    /// In the target.
    pub name: &'static str,
    pub from: &'static str,
    /// Columns of the source that order its rows, and which rows are meant.
    pub key: &'static [&'static str],
    pub only: &'static str,
    pub columns: &'static [Column],
}

const fn id(name: &'static str) -> Column {
    Column { name, kind: Kind::Id, read: name }
}

const fn int(name: &'static str) -> Column {
    Column { name, kind: Kind::Int, read: name }
}

const fn flag(name: &'static str) -> Column {
    Column { name, kind: Kind::Flag, read: name }
}

const fn text(name: &'static str) -> Column {
    Column { name, kind: Kind::Text, read: name }
}

const fn bytes(name: &'static str) -> Column {
    Column { name, kind: Kind::Bytes, read: name }
}

const fn read(column: Column, read: &'static str) -> Column {
    Column { read, ..column }
}

const ALL: &str = "true";

/// What a dead worker's leases leave: they are due when they run out. A deleted endpoint's are held
/// until a step cancels them.
const DELIVERY_STATE: &str = "
    CASE WHEN delivery.state <> 1 THEN delivery.state
         WHEN (SELECT state FROM lane WHERE lane.endpoint_id = delivery.endpoint_id) = 0 THEN 0
         ELSE 2 END";
const DELIVERY_DUE: &str = "iif(state = 1, min(due_at, lease_until), due_at)";

/// Lanes with when the first of their leases runs out.
const LANES: &str = "
    lane LEFT JOIN (
        SELECT endpoint_id AS released_id, min(min(due_at, lease_until)) AS released_at
        FROM delivery INDEXED BY delivery_lease WHERE state = 1 GROUP BY endpoint_id
    ) ON released_id = endpoint_id";
const LANE_SWEEP: &str = "iif(state = 2 AND released_at IS NOT NULL, 2, sweep)";
/// As `lane_pull` would.
const LANE_DUE: &str = "
    CASE WHEN state = 0 AND sweep = 0 AND released_at IS NOT NULL THEN
        min(ifnull(next_due_at, 9223372036854775807),
            max(released_at, iif(breaker = 0, released_at, breaker_until),
                ifnull(quiet_until, released_at)))
    ELSE next_due_at END";

/// In an order in which nothing comes before what it belongs to.
pub(crate) const TABLES: &[Table] = &[
    Table {
        name: "application",
        from: "application",
        key: &["id"],
        only: ALL,
        columns: &[
            id("id"),
            text("organisation_id"),
            text("uid"),
            text("name"),
            int("throttle_rate"),
            text("metadata"),
            int("routes_version"),
            int("created_at"),
            int("updated_at"),
            int("deleted_at"),
        ],
    },
    Table {
        name: "application_limiter",
        from: "application",
        key: &["id"],
        only: "limiter_next_at <> 0",
        columns: &[read(id("application_id"), "id"), read(int("next_at"), "limiter_next_at")],
    },
    Table {
        name: "endpoint",
        from: "endpoint",
        key: &["id"],
        only: ALL,
        columns: &[
            id("id"),
            id("application_id"),
            text("uid"),
            text("url"),
            text("description"),
            text("disabled"),
            text("event_types"),
            text("channels"),
            int("throttle_rate"),
            int("version"),
            text("metadata"),
            text("headers"),
            text("secrets"),
            text("policy"),
            int("created_at"),
            int("updated_at"),
            int("deleted_at"),
        ],
    },
    Table {
        name: "event_type",
        from: "event_type",
        key: &["organisation_id", "name"],
        only: ALL,
        columns: &[
            text("organisation_id"),
            text("name"),
            text("description"),
            flag("archived"),
            flag("deprecated"),
            text("schemas"),
            text("feature_flag"),
            text("group_name"),
            int("created_at"),
            int("updated_at"),
        ],
    },
    Table {
        name: "lane",
        from: LANES,
        key: &["endpoint_id"],
        only: ALL,
        columns: &[
            id("endpoint_id"),
            id("application_id"),
            int("state"),
            read(int("sweep"), LANE_SWEEP),
            int("endpoint_version"),
            read(int("next_due_at"), LANE_DUE),
            int("breaker"),
            int("breaker_until"),
            int("consecutive_failures"),
            int("cooldown"),
            int("quiet_until"),
            int("ramp"),
            int("failing_since"),
            int("last_failure_at"),
            int("last_success_at"),
            int("warned_percent"),
            int("limiter_next_at"),
            int("p95_ms"),
        ],
    },
    Table {
        name: "event",
        from: "message",
        key: &["seq"],
        only: "event_id IS NOT NULL",
        columns: &[id("application_id"), text("event_id"), read(id("message_id"), "id")],
    },
    Table {
        name: "message",
        from: "message",
        key: &["seq"],
        only: ALL,
        columns: &[
            id("application_id"),
            id("id"),
            text("event_id"),
            text("event_type"),
            text("channels"),
            bytes("payload"),
            int("created_at"),
            int("expires_at"),
        ],
    },
    Table {
        name: "delivery",
        from: "delivery",
        key: &["endpoint_id", "message_id"],
        only: ALL,
        columns: &[
            id("endpoint_id"),
            id("message_id"),
            id("application_id"),
            read(int("state"), DELIVERY_STATE),
            int("class"),
            read(int("due_at"), DELIVERY_DUE),
            int("attempts"),
            int("plan_attempts"),
            int("trigger"),
            int("planned_at"),
            int("lease_number"),
            read(id("lease_worker"), "NULL"),
            read(int("lease_until"), "NULL"),
            int("accepted_at"),
            int("last_status"),
            flag("reopened"),
        ],
    },
    Table {
        name: "ended",
        from: "ended",
        key: &["seq"],
        only: ALL,
        columns: &[
            id("endpoint_id"),
            id("message_id"),
            id("application_id"),
            int("state"),
            text("cause"),
            int("attempts"),
            int("lease_number"),
            int("accepted_at"),
            int("ended_at"),
            int("last_status"),
        ],
    },
    Table {
        name: "attempt",
        from: "attempt",
        key: &["seq"],
        only: ALL,
        columns: &[
            id("message_id"),
            id("id"),
            id("endpoint_id"),
            int("number"),
            int("trigger"),
            int("started_at"),
            text("url"),
            int("status"),
            bytes("retry_after"),
            bytes("body"),
            flag("body_cut"),
            text("failure"),
            text("failure_phase"),
            text("failure_detail"),
            int("dns"),
            int("connect"),
            int("tls"),
            int("first_byte"),
            int("total"),
            text("remote"),
            text("verdict"),
            int("next_attempt_at"),
        ],
    },
    Table {
        name: "tally",
        from: "tally",
        key: &["minute", "worker_id"],
        only: ALL,
        columns: &[
            int("minute"),
            id("worker_id"),
            int("delivered"),
            int("failed"),
            int("failed_attempts"),
            int("timed"),
            int("delivery_time"),
        ],
    },
    Table {
        name: "window_sketch",
        from: "window_sketch",
        key: &["scope", "endpoint_id", "start", "worker_id"],
        only: ALL,
        columns: &[
            int("scope"),
            // What is over all endpoints has no endpoint there, and one of zeros here.
            read(id("endpoint_id"), "iif(endpoint_id = x'', zeroblob(16), endpoint_id)"),
            int("start"),
            id("worker_id"),
            bytes("sketch"),
        ],
    },
    Table {
        name: "idempotency",
        from: "idempotency",
        key: &["key_hash"],
        only: ALL,
        columns: &[
            bytes("key_hash"),
            bytes("request_hash"),
            int("state"),
            id("message_id"),
            int("status"),
            bytes("body"),
            int("takeover_at"),
            int("expires_at"),
        ],
    },
    Table {
        name: "task",
        from: "task",
        key: &["id"],
        only: ALL,
        columns: &[
            id("id"),
            id("endpoint_id"),
            int("since"),
            int("until"),
            text("states"),
            int("rate_per_second"),
            int("status"),
            int("replayed"),
            int("skipped"),
            id("cursor"),
            int("paced_until"),
            int("created_at"),
            int("updated_at"),
        ],
    },
    Table {
        name: "notice",
        from: "notice",
        key: &["id"],
        only: ALL,
        columns: &[id("id"), id("application_id"), id("endpoint_id"), text("kind"), text("detail")],
    },
];
