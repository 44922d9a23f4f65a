-- Times are microseconds since the Unix epoch, spans microseconds, ids 16 bytes ordered by time.
-- Lists and maps that are only read whole are JSON text. No query calls a clock.
-- Names compare byte by byte (COLLATE "C"), whatever the database's own order is.

CREATE TABLE posthaste.application (
    id uuid NOT NULL PRIMARY KEY,
    organisation_id text COLLATE "C" NOT NULL,
    uid text COLLATE "C",
    name text NOT NULL,
    throttle_rate integer,
    metadata text NOT NULL,
    -- Grows with every change to the application or one of its endpoints.
    routes_version bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    deleted_at bigint
);

CREATE UNIQUE INDEX application_uid ON posthaste.application (organisation_id, uid)
    WHERE uid IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX application_page ON posthaste.application (organisation_id, id)
    WHERE deleted_at IS NULL;

-- State of an application's limiter over all endpoints. Apart, because claims lock it and accepts
-- lock the application: neither waits for the other.
CREATE TABLE posthaste.application_limiter (
    application_id uuid NOT NULL PRIMARY KEY,
    next_at bigint NOT NULL
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE posthaste.endpoint (
    id uuid NOT NULL PRIMARY KEY,
    application_id uuid NOT NULL,
    uid text COLLATE "C",
    url text NOT NULL,
    description text NOT NULL,
    -- NULL, or why: manual, gone, failing.
    disabled text,
    event_types text,
    channels text,
    throttle_rate integer,
    version bigint NOT NULL,
    metadata text NOT NULL,
    headers text NOT NULL,
    secrets text NOT NULL,
    policy text NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    deleted_at bigint
);

CREATE UNIQUE INDEX endpoint_uid ON posthaste.endpoint (application_id, uid)
    WHERE uid IS NOT NULL AND deleted_at IS NULL;
-- Deleted ones too: deliveries of a message are found through its application's endpoints.
CREATE INDEX endpoint_page ON posthaste.endpoint (application_id, id);

CREATE TABLE posthaste.event_type (
    organisation_id text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    description text NOT NULL,
    archived boolean NOT NULL,
    deprecated boolean NOT NULL,
    schemas text,
    feature_flag text COLLATE "C",
    group_name text,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (organisation_id, name)
);

-- One endpoint's live state: its health, and when something of it is next due. Whoever changes a
-- delivery that is there holds the lock of its lane; lanes are locked in the order of their ids.
-- Half of each page is kept free, so that updates that leave next_due_at alone touch no index.
CREATE TABLE posthaste.lane (
    endpoint_id uuid NOT NULL PRIMARY KEY,
    application_id uuid NOT NULL,
    -- 0 in use, 1 disabled, 2 deleted.
    state smallint NOT NULL,
    -- What a step still has to do with what waits: 0 nothing, 1 hold it, 2 cancel it.
    sweep smallint NOT NULL,
    -- Grows with every change to the endpoint, so that a copy of it can be known to be current.
    endpoint_version bigint NOT NULL,
    -- NULL: nothing waits, or nothing may go.
    next_due_at bigint,
    -- 0 closed, 1 open until, 2 half-open with a probe out until.
    breaker smallint NOT NULL,
    breaker_until bigint NOT NULL,
    consecutive_failures bigint NOT NULL,
    cooldown bigint NOT NULL,
    quiet_until bigint,
    ramp bigint,
    failing_since bigint,
    last_failure_at bigint,
    last_success_at bigint,
    warned_percent smallint NOT NULL,
    limiter_next_at bigint NOT NULL,
    p95_ms bigint NOT NULL
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.5
);

CREATE INDEX lane_due ON posthaste.lane (next_due_at) WHERE next_due_at IS NOT NULL;
CREATE INDEX lane_sweep ON posthaste.lane (sweep) WHERE sweep <> 0;

-- Parted by the time of acceptance, which ids are ordered by. Payloads are not compressed: most are
-- small, and what is large is often compressed already.
CREATE TABLE posthaste.message (
    application_id uuid NOT NULL,
    id uuid NOT NULL PRIMARY KEY,
    event_id text COLLATE "C",
    event_type text COLLATE "C" NOT NULL,
    channels text,
    payload bytea,
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL
) PARTITION BY RANGE (id);

ALTER TABLE posthaste.message ALTER COLUMN payload SET STORAGE EXTERNAL;
CREATE INDEX message_page ON posthaste.message (application_id, id);
CREATE INDEX message_expiry ON posthaste.message (expires_at) WHERE payload IS NOT NULL;
-- Whatever lies in no partition that was made ahead, because a clock was wrong.
CREATE TABLE posthaste.message_default PARTITION OF posthaste.message DEFAULT;

-- Event ids are unique within an application, which an index over partitions cannot see to.
CREATE TABLE posthaste.event (
    application_id uuid NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    message_id uuid NOT NULL,
    PRIMARY KEY (application_id, event_id)
);

-- Open deliveries only: small and hot whatever the history.
CREATE TABLE posthaste.delivery (
    endpoint_id uuid NOT NULL,
    message_id uuid NOT NULL,
    application_id uuid NOT NULL,
    -- 0 waiting, 1 leased, 2 held.
    state smallint NOT NULL,
    class smallint NOT NULL,
    due_at bigint NOT NULL,
    attempts integer NOT NULL,
    plan_attempts integer NOT NULL,
    -- 0 scheduled, 1 manual.
    trigger smallint NOT NULL,
    planned_at bigint,
    lease_number bigint NOT NULL,
    lease_worker uuid,
    lease_until bigint,
    accepted_at bigint NOT NULL,
    last_status smallint,
    -- It was given up before, and its row among the ended stays until this ends.
    reopened boolean NOT NULL,
    PRIMARY KEY (endpoint_id, message_id)
) WITH (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 100000, autovacuum_analyze_scale_factor = 0.2
);

CREATE INDEX delivery_due ON posthaste.delivery (endpoint_id, class, due_at) WHERE state = 0;
CREATE INDEX delivery_lease ON posthaste.delivery (lease_worker) WHERE state = 1;
CREATE INDEX delivery_held ON posthaste.delivery (endpoint_id) WHERE state = 2;

-- How deliveries ended. An open delivery of the same key takes precedence.
CREATE TABLE posthaste.ended (
    endpoint_id uuid NOT NULL,
    message_id uuid NOT NULL,
    application_id uuid NOT NULL,
    -- 3 delivered, 4 dead letter, 5 cancelled.
    state smallint NOT NULL,
    cause text,
    attempts integer NOT NULL,
    -- Leases are numbered on, should it be sent again.
    lease_number bigint NOT NULL,
    accepted_at bigint NOT NULL,
    ended_at bigint NOT NULL,
    last_status smallint,
    PRIMARY KEY (endpoint_id, message_id)
) PARTITION BY RANGE (message_id);

CREATE INDEX ended_dead ON posthaste.ended (endpoint_id, message_id) WHERE state = 4;
CREATE INDEX ended_dead_page ON posthaste.ended (message_id) WHERE state = 4;
CREATE TABLE posthaste.ended_default PARTITION OF posthaste.ended DEFAULT;

CREATE TABLE posthaste.attempt (
    message_id uuid NOT NULL,
    id uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    number integer NOT NULL,
    trigger smallint NOT NULL,
    started_at bigint NOT NULL,
    url text NOT NULL,
    -- NULL: no complete answer, and the failure columns say why.
    status smallint,
    retry_after bytea,
    body bytea,
    body_cut boolean NOT NULL,
    failure text,
    failure_phase text,
    failure_detail text,
    dns bigint,
    connect bigint,
    tls bigint,
    first_byte bigint,
    total bigint NOT NULL,
    remote text,
    verdict text NOT NULL,
    next_attempt_at bigint,
    PRIMARY KEY (message_id, id)
) PARTITION BY RANGE (message_id);

CREATE INDEX attempt_endpoint ON posthaste.attempt (endpoint_id, id);
CREATE TABLE posthaste.attempt_default PARTITION OF posthaste.attempt DEFAULT;

-- Counts by minute and worker; readers add them up.
CREATE TABLE posthaste.tally (
    minute bigint NOT NULL,
    worker_id uuid NOT NULL,
    delivered bigint NOT NULL,
    failed bigint NOT NULL,
    failed_attempts bigint NOT NULL,
    -- Deliveries whose time from accepted to delivered is in the sum.
    timed bigint NOT NULL,
    delivery_time bigint NOT NULL,
    PRIMARY KEY (minute, worker_id)
) WITH (fillfactor = 50);

-- Sketches by window and worker; readers merge them.
CREATE TABLE posthaste.window_sketch (
    -- 0 an endpoint's latency by the hour, 1 delivery time over all by the minute.
    scope smallint NOT NULL,
    -- All zeros for what is over all endpoints.
    endpoint_id uuid NOT NULL,
    start bigint NOT NULL,
    worker_id uuid NOT NULL,
    sketch bytea NOT NULL,
    PRIMARY KEY (scope, endpoint_id, start, worker_id)
) WITH (fillfactor = 50);

CREATE INDEX window_sketch_start ON posthaste.window_sketch (start);

CREATE TABLE posthaste.idempotency (
    key_hash bytea NOT NULL PRIMARY KEY,
    request_hash bytea NOT NULL,
    -- 0 begun, 1 done.
    state smallint NOT NULL,
    -- The message that was accepted under the key, or the answer to repeat.
    message_id uuid,
    status integer,
    body bytea,
    -- When a begun request may be taken over.
    takeover_at bigint,
    expires_at bigint NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX idempotency_expiry ON posthaste.idempotency (expires_at);

-- Every worker that may hold a lease.
CREATE TABLE posthaste.worker (
    id uuid NOT NULL PRIMARY KEY,
    heartbeat_at bigint NOT NULL
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE posthaste.task (
    id uuid NOT NULL PRIMARY KEY,
    endpoint_id uuid NOT NULL,
    since bigint NOT NULL,
    until bigint NOT NULL,
    -- A comma-separated list of states.
    states text NOT NULL,
    rate_per_second bigint,
    -- 0 running, 1 finished.
    status smallint NOT NULL,
    replayed bigint NOT NULL,
    -- Those whose payload was gone.
    skipped bigint NOT NULL,
    cursor uuid,
    -- When the next delivery may become due, if there is a rate.
    paced_until bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL
);

CREATE INDEX task_running ON posthaste.task (updated_at) WHERE status = 0;

CREATE TABLE posthaste.notice (
    id uuid NOT NULL PRIMARY KEY,
    application_id uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    kind text NOT NULL,
    detail text NOT NULL
);

CREATE INDEX notice_page ON posthaste.notice (application_id, id);
