-- Times are microseconds since the Unix epoch, spans microseconds, ids 16 bytes ordered by time.
-- Lists and maps that are only read whole are JSON text. No query calls a clock.

CREATE TABLE application (
    id BLOB NOT NULL PRIMARY KEY,
    organisation_id TEXT NOT NULL,
    uid TEXT,
    name TEXT NOT NULL,
    throttle_rate INTEGER,
    metadata TEXT NOT NULL,
    -- Grows with every change to the application or one of its endpoints.
    routes_version INTEGER NOT NULL,
    -- State of the limiter over all endpoints.
    limiter_next_at INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    deleted_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX application_uid ON application (organisation_id, uid)
    WHERE uid IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX application_page ON application (organisation_id, id) WHERE deleted_at IS NULL;

CREATE TABLE endpoint (
    id BLOB NOT NULL PRIMARY KEY,
    application_id BLOB NOT NULL,
    uid TEXT,
    url TEXT NOT NULL,
    description TEXT NOT NULL,
    -- NULL, or why: manual, gone, failing.
    disabled TEXT,
    event_types TEXT,
    channels TEXT,
    throttle_rate INTEGER,
    version INTEGER NOT NULL,
    metadata TEXT NOT NULL,
    headers TEXT NOT NULL,
    secrets TEXT NOT NULL,
    policy TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    deleted_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX endpoint_uid ON endpoint (application_id, uid)
    WHERE uid IS NOT NULL AND deleted_at IS NULL;
-- Deleted ones too: deliveries of a message are found through its application's endpoints.
CREATE INDEX endpoint_page ON endpoint (application_id, id);

CREATE TABLE event_type (
    organisation_id TEXT NOT NULL,
    name TEXT NOT NULL,
    description TEXT NOT NULL,
    archived INTEGER NOT NULL,
    deprecated INTEGER NOT NULL,
    schemas TEXT,
    feature_flag TEXT,
    group_name TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (organisation_id, name)
) STRICT, WITHOUT ROWID;

-- One endpoint's live state: its health, and when something of it is next due.
CREATE TABLE lane (
    endpoint_id BLOB NOT NULL PRIMARY KEY,
    application_id BLOB NOT NULL,
    -- 0 in use, 1 disabled, 2 deleted.
    state INTEGER NOT NULL,
    -- What a step still has to do with what waits: 0 nothing, 1 hold it, 2 cancel it.
    sweep INTEGER NOT NULL,
    -- Grows with every change to the endpoint, so that a copy of it can be known to be current.
    endpoint_version INTEGER NOT NULL,
    -- NULL: nothing waits, or nothing may go.
    next_due_at INTEGER,
    -- 0 closed, 1 open until, 2 half-open with a probe out until.
    breaker INTEGER NOT NULL,
    breaker_until INTEGER NOT NULL,
    consecutive_failures INTEGER NOT NULL,
    cooldown INTEGER NOT NULL,
    quiet_until INTEGER,
    ramp INTEGER,
    failing_since INTEGER,
    last_failure_at INTEGER,
    last_success_at INTEGER,
    warned_percent INTEGER NOT NULL,
    limiter_next_at INTEGER NOT NULL,
    p95_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX lane_due ON lane (next_due_at) WHERE next_due_at IS NOT NULL;
CREATE INDEX lane_sweep ON lane (sweep) WHERE sweep <> 0;

-- Appended in order of acceptance, so payloads never move.
CREATE TABLE message (
    -- The order of commits, also in the other tables that have it.
    seq INTEGER NOT NULL PRIMARY KEY,
    application_id BLOB NOT NULL,
    id BLOB NOT NULL,
    event_id TEXT,
    event_type TEXT NOT NULL,
    channels TEXT,
    payload BLOB,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX message_event ON message (application_id, event_id)
    WHERE event_id IS NOT NULL;

-- Open deliveries only: small and hot whatever the history.
CREATE TABLE delivery (
    endpoint_id BLOB NOT NULL,
    message_id BLOB NOT NULL,
    application_id BLOB NOT NULL,
    -- 0 waiting, 1 leased, 2 held.
    state INTEGER NOT NULL,
    class INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    plan_attempts INTEGER NOT NULL,
    -- 0 scheduled, 1 manual.
    trigger INTEGER NOT NULL,
    planned_at INTEGER,
    lease_number INTEGER NOT NULL,
    lease_worker BLOB,
    lease_until INTEGER,
    accepted_at INTEGER NOT NULL,
    last_status INTEGER,
    -- 1: it was given up before, and its row among the ended stays until this ends.
    reopened INTEGER NOT NULL,
    -- Where its message is.
    message_seq INTEGER NOT NULL,
    -- Where it is among the ended, if it had ended before.
    ended_seq INTEGER,
    PRIMARY KEY (endpoint_id, message_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX delivery_due ON delivery (endpoint_id, class, due_at) WHERE state = 0;
CREATE INDEX delivery_lease ON delivery (lease_worker) WHERE state = 1;
CREATE INDEX delivery_held ON delivery (endpoint_id) WHERE state = 2;

-- How deliveries ended. An open delivery of the same key takes precedence.
CREATE TABLE ended (
    seq INTEGER NOT NULL PRIMARY KEY,
    endpoint_id BLOB NOT NULL,
    message_id BLOB NOT NULL,
    application_id BLOB NOT NULL,
    -- 3 delivered, 4 dead letter, 5 cancelled.
    state INTEGER NOT NULL,
    cause TEXT,
    attempts INTEGER NOT NULL,
    -- Leases are numbered on, should it be sent again.
    lease_number INTEGER NOT NULL,
    accepted_at INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    last_status INTEGER
) STRICT;

CREATE INDEX ended_dead ON ended (endpoint_id, message_id) WHERE state = 4;
CREATE INDEX ended_dead_page ON ended (message_id, endpoint_id) WHERE state = 4;

CREATE TABLE attempt (
    seq INTEGER NOT NULL PRIMARY KEY,
    message_id BLOB NOT NULL,
    id BLOB NOT NULL,
    endpoint_id BLOB NOT NULL,
    number INTEGER NOT NULL,
    trigger INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    url TEXT NOT NULL,
    -- NULL: no complete answer, and the failure columns say why.
    status INTEGER,
    retry_after BLOB,
    body BLOB,
    body_cut INTEGER NOT NULL,
    failure TEXT,
    failure_phase TEXT,
    failure_detail TEXT,
    dns INTEGER,
    connect INTEGER,
    tls INTEGER,
    first_byte INTEGER,
    total INTEGER NOT NULL,
    remote TEXT,
    verdict TEXT NOT NULL,
    next_attempt_at INTEGER
) STRICT;

-- Lists in the order in which they are read. Each row lands on another page than the one before it,
-- so they are not written with what they list but some moments later, many at once.
CREATE TABLE message_list (
    application_id BLOB NOT NULL,
    id BLOB NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (application_id, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE ended_list (
    endpoint_id BLOB NOT NULL,
    message_id BLOB NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (endpoint_id, message_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE attempt_list (
    endpoint_id BLOB NOT NULL,
    id BLOB NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (endpoint_id, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE message_attempt_list (
    message_id BLOB NOT NULL,
    id BLOB NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (message_id, id)
) STRICT, WITHOUT ROWID;

-- Messages that have a payload.
CREATE TABLE expiry_list (
    expires_at INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (expires_at, seq)
) STRICT, WITHOUT ROWID;

-- Up to which `seq` the lists are complete; one row.
CREATE TABLE listed (
    id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    message_seq INTEGER NOT NULL,
    ended_seq INTEGER NOT NULL,
    attempt_seq INTEGER NOT NULL
) STRICT;

INSERT INTO listed (id, message_seq, ended_seq, attempt_seq) VALUES (1, 0, 0, 0);

-- Counts by minute and worker; readers add them up.
CREATE TABLE tally (
    minute INTEGER NOT NULL,
    worker_id BLOB NOT NULL,
    delivered INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    failed_attempts INTEGER NOT NULL,
    -- Deliveries whose time from accepted to delivered is in the sum.
    timed INTEGER NOT NULL,
    delivery_time INTEGER NOT NULL,
    PRIMARY KEY (minute, worker_id)
) STRICT, WITHOUT ROWID;

-- Sketches by window and worker; readers merge them.
CREATE TABLE window_sketch (
    -- 0 an endpoint's latency by the hour, 1 delivery time over all by the minute.
    scope INTEGER NOT NULL,
    -- Empty for what is over all endpoints.
    endpoint_id BLOB NOT NULL,
    start INTEGER NOT NULL,
    worker_id BLOB NOT NULL,
    sketch BLOB NOT NULL,
    PRIMARY KEY (scope, endpoint_id, start, worker_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX window_sketch_start ON window_sketch (start);

CREATE TABLE idempotency (
    key_hash BLOB NOT NULL PRIMARY KEY,
    request_hash BLOB NOT NULL,
    -- 0 begun, 1 done.
    state INTEGER NOT NULL,
    -- The message that was accepted under the key, or the answer to repeat.
    message_id BLOB,
    status INTEGER,
    body BLOB,
    -- When a begun request may be taken over.
    takeover_at INTEGER,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX idempotency_expiry ON idempotency (expires_at);

-- Every worker that may hold a lease.
CREATE TABLE worker (
    id BLOB NOT NULL PRIMARY KEY,
    heartbeat_at INTEGER NOT NULL,
    -- 1: its process holds the lock file of its name while it lives.
    locks INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE task (
    id BLOB NOT NULL PRIMARY KEY,
    endpoint_id BLOB NOT NULL,
    since INTEGER NOT NULL,
    until INTEGER NOT NULL,
    -- A comma-separated list of states.
    states TEXT NOT NULL,
    rate_per_second INTEGER,
    -- 0 running, 1 finished.
    status INTEGER NOT NULL,
    replayed INTEGER NOT NULL,
    -- Those whose payload was gone.
    skipped INTEGER NOT NULL,
    cursor BLOB,
    -- When the next delivery may become due, if there is a rate.
    paced_until INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX task_running ON task (updated_at) WHERE status = 0;

CREATE TABLE notice (
    id BLOB NOT NULL PRIMARY KEY,
    application_id BLOB NOT NULL,
    endpoint_id BLOB NOT NULL,
    kind TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX notice_page ON notice (application_id, id);
