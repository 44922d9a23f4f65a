-- Workers, recovery, sweeps, tasks, retention.

-- name: worker_see
-- $1 workers, $2 now. Primary key. Workers that may hold leases from now on. One that was silent
-- for 12 s (HEARTBEAT_LOST_AFTER) and takes leases lives again; the row of any other is not even
-- locked.
INSERT INTO posthaste.worker (id, heartbeat_at)
SELECT * FROM unnest($1::uuid[], $2::int8[]) AS seen (id, at)
WHERE NOT EXISTS (
    SELECT 1 FROM posthaste.worker
    WHERE worker.id = seen.id AND heartbeat_at >= seen.at - 12000000
)
ORDER BY id
ON CONFLICT (id) DO UPDATE SET
    heartbeat_at = greatest(worker.heartbeat_at, excluded.heartbeat_at);

-- name: worker_heartbeat
-- $1 worker, $2 now.
INSERT INTO posthaste.worker (id, heartbeat_at) VALUES ($1, $2)
ON CONFLICT (id) DO UPDATE SET
    heartbeat_at = greatest(worker.heartbeat_at, excluded.heartbeat_at);

-- name: workers
-- $1 how many, $2 when. Index delivery_lease. Workers that hold leases, and those that were silent
-- since then. Those heard of longest ago come first, so that however many live, none of the dead is
-- left out.
SELECT id, heartbeat_at FROM posthaste.worker
WHERE heartbeat_at < $2 OR EXISTS (
    SELECT 1 FROM posthaste.delivery WHERE lease_worker = worker.id AND state = 1
)
ORDER BY heartbeat_at, id
LIMIT $1;

-- name: worker_silent
-- $1 worker, $2 when. Primary key. It left, and counts as silent from then on.
-- only here: with one writer nothing can be under way that gives it a lease.
UPDATE posthaste.worker SET heartbeat_at = least(heartbeat_at, $2) WHERE id = $1;

-- name: worker_delete
-- $1 worker, $2 silent since. Primary key. One that holds nothing; a transaction under way that
-- gives it a lease is younger than its silence is long.
DELETE FROM posthaste.worker
WHERE id = $1 AND heartbeat_at < $2 AND NOT EXISTS (
    SELECT 1 FROM posthaste.delivery WHERE lease_worker = $1 AND state = 1
);

-- name: leases_of
-- $1 worker, $2 how many. Index delivery_lease.
SELECT endpoint_id, message_id FROM posthaste.delivery
WHERE lease_worker = $1 AND state = 1
LIMIT $2;

-- name: leases_expired
-- $1 worker, $2 now, $3 how many. Index delivery_lease; a worker has few leases.
SELECT endpoint_id, message_id FROM posthaste.delivery
WHERE lease_worker = $1 AND state = 1 AND lease_until <= $2
LIMIT $3;

-- name: sweep_next
-- Index lane_sweep. A lane whose endpoint was disabled or deleted while something waited, locked;
-- one that somebody else sweeps is passed over.
SELECT endpoint_id FROM posthaste.lane WHERE sweep <> 0 LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;

-- name: sweep_find
-- $1 endpoint. Primary key. Locks it.
SELECT sweep FROM posthaste.lane WHERE endpoint_id = $1 FOR NO KEY UPDATE;

-- name: sweep_hold
-- $1 endpoint, $2 how many. Index delivery_due, then primary keys.
UPDATE posthaste.delivery SET state = 2
WHERE endpoint_id = $1 AND message_id = ANY (ARRAY(
    SELECT message_id FROM posthaste.delivery WHERE endpoint_id = $1 AND state = 0 LIMIT $2
));

-- name: sweep_cancel
-- $1 endpoint, $2 how many. Primary key; those under lease end when they are recorded.
SELECT message_id FROM posthaste.delivery WHERE endpoint_id = $1 AND state <> 1 LIMIT $2;

-- name: sweep_done
-- $1 endpoint. Primary key.
UPDATE posthaste.lane SET sweep = 0 WHERE endpoint_id = $1;

-- name: task_insert
-- A task; starting it twice is starting it once.
INSERT INTO posthaste.task
    (id, endpoint_id, since, until, states, rate_per_second, status, replayed, cursor, paced_until,
     created_at, updated_at, skipped)
VALUES ($1, $2, $3, $4, $5, $6, $7::int8, $8, $9, $10, $10, $11, $12)
ON CONFLICT (id) DO NOTHING;

-- name: task_find
-- $1 id. Primary keys.
SELECT task.id, lane.application_id, task.endpoint_id, since, until, states, rate_per_second,
    status, replayed, skipped, cursor, created_at, updated_at
FROM posthaste.task
JOIN posthaste.lane ON lane.endpoint_id = task.endpoint_id
WHERE task.id = $1;

-- name: task_next
-- Index task_running: the one that waited longest goes first. One whose endpoint is disabled waits
-- until it is enabled; one that somebody else advances, or whose lane is busy, is passed over.
-- Locks both.
SELECT lane.state, paced_until, task.id, lane.application_id, task.endpoint_id, since, until,
    states, rate_per_second, status, replayed, skipped, cursor, created_at, updated_at
FROM posthaste.task
JOIN posthaste.lane ON lane.endpoint_id = task.endpoint_id
WHERE task.status = 0 AND lane.state <> 1 AND lane.sweep = 0
ORDER BY updated_at
LIMIT 1
FOR NO KEY UPDATE SKIP LOCKED;

-- name: replay_dead
-- $1 endpoint, $2 after message, $3 before message, $4 since, $5 until, $6 how many. Index
-- ended_dead. Those that are open again already are left alone. With whether the
-- payload is gone.
SELECT message_id, coalesce((
    SELECT (payload IS NULL)::int FROM posthaste.message WHERE message.id = ended.message_id
), 1)
FROM posthaste.ended
WHERE endpoint_id = $1 AND state = 4 AND message_id > $2 AND message_id < $3
    AND accepted_at >= $4 AND accepted_at < $5
    AND NOT EXISTS (
        SELECT 1 FROM posthaste.delivery
        WHERE delivery.endpoint_id = $1 AND delivery.message_id = ended.message_id
    )
ORDER BY message_id
LIMIT $6;

-- name: replay_held
-- $1 endpoint, $2 after message, $3 before message, $4 since, $5 until, $6 how many. Index
-- delivery_held. With whether the payload is gone.
SELECT message_id, coalesce((
    SELECT (payload IS NULL)::int FROM posthaste.message WHERE message.id = delivery.message_id
), 1)
FROM posthaste.delivery
WHERE endpoint_id = $1 AND state = 2 AND message_id > $2 AND message_id < $3
    AND accepted_at >= $4 AND accepted_at < $5
ORDER BY message_id
LIMIT $6;

-- name: replay_reopen
-- $1 endpoint, $2 messages, $3 due. Primary key. A dead letter gets a new plan; attempts and leases
-- are numbered on.
INSERT INTO posthaste.delivery
    (endpoint_id, message_id, application_id, state, class, due_at, attempts, plan_attempts,
     trigger, lease_number, accepted_at, last_status, reopened)
SELECT ended.endpoint_id, ended.message_id, application_id, 0, 3, new.due_at, attempts, 0, 0,
    lease_number, accepted_at, last_status, true
FROM unnest($2::uuid[], $3::int8[]) AS new (message_id, due_at)
JOIN posthaste.ended ON ended.endpoint_id = $1 AND ended.message_id = new.message_id;

-- name: replay_release
-- $1 endpoint, $2 messages, $3 due. Primary key. A held delivery gets a new plan.
UPDATE posthaste.delivery
SET state = 0, class = 3, due_at = new.due_at, plan_attempts = 0, trigger = 0, planned_at = NULL
FROM unnest($2::uuid[], $3::int8[]) AS new (message_id, due_at)
WHERE delivery.endpoint_id = $1 AND delivery.message_id = new.message_id AND delivery.state = 2;

-- name: task_advance
-- $1 id, $2 status, $3 replayed so far, $4 cursor, $5 paced until, $6 now,
-- $7 skipped so far. Primary key.
UPDATE posthaste.task
SET status = $2::int8, replayed = $3, cursor = $4, paced_until = $5, updated_at = $6,
    skipped = $7
WHERE id = $1;

-- name: prune_payloads
-- $1 now, $2 how many. Index message_expiry, then primary key.
UPDATE posthaste.message SET payload = NULL
WHERE id = ANY (ARRAY(
    SELECT id FROM posthaste.message WHERE expires_at <= $1 AND payload IS NOT NULL LIMIT $2
)) AND payload IS NOT NULL;

-- name: prune_idempotency
-- $1 now, $2 how many. Index idempotency_expiry. One that somebody is taking over is passed over.
DELETE FROM posthaste.idempotency
WHERE key_hash = ANY (ARRAY(
    SELECT key_hash FROM posthaste.idempotency WHERE expires_at <= $1
    LIMIT $2
    FOR UPDATE SKIP LOCKED
));

-- name: prune_sketches
-- $1 oldest start that is kept, $2 how many. Index window_sketch_start.
DELETE FROM posthaste.window_sketch
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM posthaste.window_sketch WHERE start < $1
    LIMIT $2
    FOR UPDATE SKIP LOCKED
));

-- name: prune_tallies
-- $1 oldest minute that is kept, $2 how many. Primary key.
DELETE FROM posthaste.tally
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM posthaste.tally WHERE minute < $1
    LIMIT $2
    FOR UPDATE SKIP LOCKED
));

-- name: check
-- Whether the database can be read.
SELECT count(*) FROM posthaste.migration;

-- name: check_write
-- Whether it can be written: a change that changes nothing.
DELETE FROM posthaste.worker WHERE id IS NULL;

-- name: check_locks
-- only here: one file has one lock, which check_write takes.
-- Whether the tables that every message needs can be written, or somebody keeps one locked.
LOCK TABLE ONLY posthaste.application, ONLY posthaste.lane, ONLY posthaste.message,
    ONLY posthaste.event, ONLY posthaste.delivery, ONLY posthaste.attempt, ONLY posthaste.ended
    IN ROW EXCLUSIVE MODE;

-- name: clock
-- only here: a file has no clock.
-- What time it is there, in microseconds.
-- own clock: it is compared with ours, for people to see; nothing is decided by it.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8;

-- name: transaction_ids
-- only here: SQLite's transactions have no numbers.
-- How many transactions, and sets of them, began since the oldest whose number rows of this
-- database may still carry.
SELECT age(datfrozenxid)::int8, mxid_age(datminmxid)::int8
FROM pg_database WHERE datname = current_database();

-- name: snapshot_oldest
-- only here: what others read holds nothing up for good there.
-- Who keeps dead rows of this database from being cleared away, longest of all: kind, process or
-- name, transactions since, seconds open. Processes that clear away themselves do not count.
-- own clock: for people to see; nothing is decided by it.
WITH at (now) AS (SELECT clock_timestamp()), holder (kind, name, transactions, since) AS (
    SELECT CASE backend_type WHEN 'walsender' THEN 'standby' ELSE 'backend' END, pid::text,
        greatest(age(backend_xmin), age(backend_xid)), xact_start
    FROM pg_stat_activity
    WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid()
        AND backend_type <> 'autovacuum worker'
        AND (datname = current_database() OR backend_type = 'walsender')
    UNION ALL
    SELECT 'prepared transaction', gid, age(transaction), prepared
    FROM pg_prepared_xacts WHERE database = current_database()
    UNION ALL
    SELECT 'replication slot', slot_name, greatest(age(xmin), age(catalog_xmin)), NULL
    FROM pg_replication_slots
    WHERE (xmin IS NOT NULL OR catalog_xmin IS NOT NULL)
        AND (database IS NULL OR database = current_database())
)
SELECT kind, name, transactions::int8, extract(epoch FROM at.now - since)::int8
FROM holder CROSS JOIN at
ORDER BY transactions DESC, since LIMIT 1;

-- name: enqueued_take
-- only here: an application's own transaction reaches no SQLite file of ours.
-- $1 how many, $2 how many bytes of payloads; the first goes whatever its size. Index
-- enqueued_next. Those that another worker takes in are passed over.
WITH taken AS MATERIALIZED (
    SELECT message_id, application_id, event_id, event_type, channels, payload
    FROM posthaste.enqueued
    WHERE refused IS NULL
    ORDER BY message_id
    LIMIT $1
    FOR UPDATE SKIP LOCKED
), sized AS (
    SELECT message_id, sum(octet_length(payload)) OVER (ORDER BY message_id) AS bytes,
        row_number() OVER (ORDER BY message_id) AS place
    FROM taken
)
SELECT taken.message_id, application_id, event_id, event_type, channels, payload
FROM taken JOIN sized ON sized.message_id = taken.message_id
WHERE bytes <= $2 OR place = 1
ORDER BY place;

-- name: enqueued_delete
-- only here: see enqueued_take.
-- $1 messages, which are locked. Primary key.
DELETE FROM posthaste.enqueued WHERE message_id = ANY ($1);

-- name: enqueued_refuse
-- only here: see enqueued_take.
-- $1 messages, $2 why each. Primary key. One that is gone or refused already stays as it is.
UPDATE posthaste.enqueued SET refused = why
FROM unnest($1::uuid[], $2::text[]) AS odd (message_id, why)
WHERE enqueued.message_id = odd.message_id AND enqueued.refused IS NULL;

-- name: prune_enqueued
-- only here: see enqueued_take.
-- $1 refused messages before this id, $2 how many. Index enqueued_refused.
DELETE FROM posthaste.enqueued
WHERE message_id = ANY (ARRAY(
    SELECT message_id FROM posthaste.enqueued
    WHERE refused IS NOT NULL AND message_id < $1
    LIMIT $2
    FOR UPDATE SKIP LOCKED
));
