-- The hot road: accept, claim, record, give back, resend.
-- Whatever comes in numbers comes as columns: arrays of one length, taken apart by unnest.
-- `state` of a delivery is written out where a partial index is meant: 0 waiting, 1 leased, 2 held.

-- name: routes_version
-- $1 applications. Primary key. No row: it is not there (any more). Its routes stay as they are
-- until the transaction ends.
SELECT id, routes_version FROM posthaste.application
WHERE id = ANY ($1) AND deleted_at IS NULL
ORDER BY id
FOR SHARE;

-- name: idempotency_find
-- $1 keys. Primary key.
SELECT request_hash, state, message_id, status, body, takeover_at, expires_at, key_hash
FROM posthaste.idempotency WHERE key_hash = ANY ($1);

-- name: idempotency_expire
-- only here: accepted keys are inserted many at once, and a key that is taken must be an error.
-- $1 keys, $2 until when they were of use. Primary key.
DELETE FROM posthaste.idempotency
USING unnest($1::bytea[], $2::int8[]) AS old (key_hash, at)
WHERE idempotency.key_hash = old.key_hash AND expires_at <= at;

-- name: idempotency_accept
-- $1 keys, $2 requests, $3 messages, $4 expiries. Fails when one is taken.
INSERT INTO posthaste.idempotency (key_hash, request_hash, state, message_id, expires_at)
SELECT key_hash, request_hash, 1, message_id, expires_at
FROM unnest($1::bytea[], $2::bytea[], $3::uuid[], $4::int8[])
    AS new (key_hash, request_hash, message_id, expires_at);

-- name: event_find
-- $1 applications, $2 event ids. Primary key.
SELECT event.application_id, event.event_id, event.message_id
FROM unnest($1::uuid[], $2::text[]) AS wanted (application_id, event_id)
JOIN posthaste.event
    ON event.application_id = wanted.application_id AND event.event_id = wanted.event_id;

-- name: event_insert
-- only here: an index over partitions cannot keep event ids unique.
-- $1 applications, $2 event ids, $3 messages. Fails when one is taken.
INSERT INTO posthaste.event (application_id, event_id, message_id)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::uuid[]);

-- name: message_insert
-- Appends messages.
INSERT INTO posthaste.message
    (application_id, id, event_id, event_type, channels, payload, created_at, expires_at)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bytea[],
    $7::int8[], $8::int8[]);

-- name: delivery_insert
-- The first state of deliveries: due, leased or held. $6 attempts so far, which is also the number
-- of the lease.
INSERT INTO posthaste.delivery
    (endpoint_id, message_id, application_id, state, class, due_at, attempts, plan_attempts,
     trigger, lease_number, lease_worker, lease_until, accepted_at, reopened)
SELECT endpoint_id, message_id, application_id, state, 0, accepted_at, attempts, attempts, 0,
    attempts, worker_id, lease_until, accepted_at, false
FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int8[], $5::int8[], $6::int8[], $7::uuid[],
    $8::int8[])
    AS new (endpoint_id, message_id, application_id, state, accepted_at, attempts, worker_id,
        lease_until);

-- name: lane_lock
-- only here: SQLite has one writer.
-- $1 endpoints. Primary key. Goes before whatever looks at what a lane holds: a statement sees
-- what was committed when it began.
SELECT endpoint_id FROM posthaste.lane
WHERE endpoint_id = ANY ($1)
ORDER BY endpoint_id
FOR NO KEY UPDATE;

-- name: lane_pull
-- $1 endpoints, $2 when something of each is due. Primary key; locked before. Brings a lane's next
-- due time nearer, but not before its breaker or a wait that the receiver asked for lets anything
-- go: so new messages for a sick endpoint do not make claims look at it.
UPDATE posthaste.lane
SET next_due_at = greatest(pulled.at, CASE WHEN breaker <> 0 THEN breaker_until END, quiet_until)
FROM unnest($1::uuid[], $2::int8[]) AS pulled (endpoint_id, at)
WHERE lane.endpoint_id = pulled.endpoint_id AND state = 0 AND sweep = 0
    AND (next_due_at IS NULL OR next_due_at
        > greatest(pulled.at, CASE WHEN breaker <> 0 THEN breaker_until END, quiet_until));

-- name: lanes_due
-- $1 now, $2 how many, $3 those to leave out. Index lane_due: the lane that waited longest comes
-- first, and what is not due is not looked at. A lane that somebody else works on is passed over.
SELECT endpoint_id, application_id, next_due_at, state, sweep, endpoint_version,
    breaker, breaker_until, consecutive_failures, cooldown, quiet_until, ramp, failing_since,
    last_failure_at, last_success_at, warned_percent, limiter_next_at, p95_ms
FROM posthaste.lane
WHERE next_due_at <= $1 AND endpoint_id <> ALL ($3)
ORDER BY next_due_at
LIMIT $2
FOR NO KEY UPDATE SKIP LOCKED;

-- name: lanes_next
-- $1 how many. Index lane_due: when the next lanes are due.
SELECT endpoint_id, next_due_at FROM posthaste.lane
WHERE next_due_at IS NOT NULL
ORDER BY next_due_at
LIMIT $1;

-- name: lane_find
-- $1 endpoints. Primary key. Locks them.
SELECT endpoint_id, application_id, next_due_at, state, sweep, endpoint_version,
    breaker, breaker_until, consecutive_failures, cooldown, quiet_until, ramp, failing_since,
    last_failure_at, last_success_at, warned_percent, limiter_next_at, p95_ms
FROM posthaste.lane
WHERE endpoint_id = ANY ($1)
ORDER BY endpoint_id
FOR NO KEY UPDATE;

-- name: lane_store
-- $1 endpoints, then next due times and health. Primary key; locked before.
UPDATE posthaste.lane
SET next_due_at = new.next_due_at, breaker = new.breaker, breaker_until = new.breaker_until,
    consecutive_failures = new.consecutive_failures, cooldown = new.cooldown,
    quiet_until = new.quiet_until, ramp = new.ramp, failing_since = new.failing_since,
    last_failure_at = new.last_failure_at, last_success_at = new.last_success_at,
    warned_percent = new.warned_percent, limiter_next_at = new.limiter_next_at,
    p95_ms = new.p95_ms
FROM unnest($1::uuid[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[],
    $8::int8[], $9::int8[], $10::int8[], $11::int8[], $12::int8[], $13::int8[], $14::int8[])
    AS new (endpoint_id, next_due_at, breaker, breaker_until, consecutive_failures, cooldown,
        quiet_until, ramp, failing_since, last_failure_at, last_success_at, warned_percent,
        limiter_next_at, p95_ms)
WHERE lane.endpoint_id = new.endpoint_id;

-- name: lane_due_set
-- $1 endpoints, $2 next due times or NULL. Primary key; locked before.
UPDATE posthaste.lane SET next_due_at = new.next_due_at
FROM unnest($1::uuid[], $2::int8[]) AS new (endpoint_id, next_due_at)
WHERE lane.endpoint_id = new.endpoint_id;

-- name: lane_leased
-- $1 endpoints. How many deliveries of each are under lease: per worker a range of delivery_lease,
-- because walking the lanes themselves would walk their backlog.
SELECT leased.endpoint_id, count(*)
FROM posthaste.worker
CROSS JOIN LATERAL (
    SELECT endpoint_id FROM posthaste.delivery
    WHERE delivery.lease_worker = worker.id AND delivery.state = 1
        AND delivery.endpoint_id = ANY ($1)
) AS leased
GROUP BY leased.endpoint_id;

-- name: lane_waiting
-- $1 endpoints, $2 now. Those where something waits that a drain may pull forward: anything but
-- replays, which keep their own pace. Index delivery_due.
SELECT endpoint_id FROM unnest($1::uuid[]) AS lane (endpoint_id)
WHERE EXISTS (
    SELECT 1 FROM posthaste.delivery
    WHERE delivery.endpoint_id = lane.endpoint_id AND state = 0 AND class < 3
) OR EXISTS (
    SELECT 1 FROM posthaste.delivery
    WHERE delivery.endpoint_id = lane.endpoint_id AND state = 0 AND class = 3 AND due_at <= $2
);

-- name: application_limit
-- $1 applications. Primary keys. Those that have a limit, locked, with its state.
INSERT INTO posthaste.application_limiter AS limiter (application_id, next_at)
SELECT id, 0 FROM posthaste.application
WHERE id = ANY ($1) AND throttle_rate IS NOT NULL
ORDER BY id
ON CONFLICT (application_id) DO UPDATE SET next_at = limiter.next_at
RETURNING application_id,
    (SELECT throttle_rate FROM posthaste.application WHERE id = limiter.application_id),
    limiter.next_at;

-- name: application_limit_try
-- only here: with one writer nobody else has it.
-- $1 applications. Primary keys. As application_limit, but waits for nobody: the state of one that
-- somebody else has, or that was never used, is NULL.
WITH got AS (
    SELECT application_id, next_at FROM posthaste.application_limiter
    WHERE application_id = ANY ($1)
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT id, throttle_rate, got.next_at
FROM posthaste.application LEFT JOIN got ON got.application_id = application.id
WHERE id = ANY ($1) AND throttle_rate IS NOT NULL;

-- name: application_limit_store
-- $1 applications, $2 the limiters' state. Primary key; locked before.
UPDATE posthaste.application_limiter SET next_at = new.next_at
FROM unnest($1::uuid[], $2::int8[]) AS new (application_id, next_at)
WHERE application_limiter.application_id = new.application_id;

-- name: claim_endpoint
-- $1 endpoints. Primary key.
SELECT id, application_id, uid, url, description, disabled, event_types, channels, throttle_rate,
    version, metadata, headers, secrets, policy, created_at, updated_at
FROM posthaste.endpoint WHERE id = ANY ($1);

-- name: waiting_of_class
-- $1 endpoints, $2 classes, $3 due until, $4 how many of each. Index delivery_due: walked from the
-- oldest.
SELECT wanted.endpoint_id, message_id, found.class, due_at, attempts, plan_attempts, trigger,
    planned_at, lease_number, accepted_at, last_status
FROM unnest($1::uuid[], $2::int8[], $3::int8[], $4::int8[])
    AS wanted (endpoint_id, class, until, rows)
CROSS JOIN LATERAL (
    SELECT * FROM posthaste.delivery
    WHERE delivery.endpoint_id = wanted.endpoint_id AND delivery.class = wanted.class
        AND state = 0 AND due_at <= wanted.until
    ORDER BY due_at
    LIMIT wanted.rows
) AS found;

-- name: waiting_next
-- $1 endpoints. When the next delivery of each is due; none that has nothing waiting. Index
-- delivery_due, once per class.
SELECT wanted.endpoint_id, min(found.due_at)
FROM unnest($1::uuid[]) AS wanted (endpoint_id)
CROSS JOIN (VALUES (0), (1), (2), (3)) AS class (number)
CROSS JOIN LATERAL (
    SELECT due_at FROM posthaste.delivery
    WHERE delivery.endpoint_id = wanted.endpoint_id AND delivery.class = class.number
        AND state = 0
    ORDER BY due_at
    LIMIT 1
) AS found
GROUP BY wanted.endpoint_id;

-- name: delivery_lease
-- $1 endpoints, $2 messages, $3 lease numbers, $4 worker, $5 until when, then counts and plans.
-- Primary key.
UPDATE posthaste.delivery
SET state = 1, lease_number = new.lease_number, lease_worker = $4, lease_until = $5,
    attempts = new.attempts, plan_attempts = new.plan_attempts, trigger = new.trigger,
    planned_at = new.planned_at
FROM unnest($1::uuid[], $2::uuid[], $3::int8[], $6::int8[], $7::int8[], $8::int8[], $9::int8[])
    AS new (endpoint_id, message_id, lease_number, attempts, plan_attempts, trigger, planned_at)
WHERE delivery.endpoint_id = new.endpoint_id AND delivery.message_id = new.message_id;

-- name: claim_message
-- $1 messages, $2 how many bytes of payload. Primary key. The last column says whether there is a
-- payload: those that come after so many bytes are left where they are.
SELECT application_id, id, event_id, event_type, channels,
    CASE WHEN before < $2 THEN payload END, created_at, expires_at, payload IS NOT NULL
FROM (
    SELECT *, sum(octet_length(payload)) OVER (ORDER BY id) - octet_length(payload) AS before
    FROM posthaste.message WHERE id = ANY ($1)
) AS found;

-- name: attempt_insert
-- Attempts with what came of them. One that is recorded twice is kept once.
INSERT INTO posthaste.attempt
    (message_id, id, endpoint_id, number, trigger, started_at, url, status, retry_after, body,
     body_cut, failure, failure_phase, failure_detail, dns, connect, tls, first_byte, total,
     remote, verdict, next_attempt_at)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int8[], $5::int8[], $6::int8[],
    $7::text[], $8::int8[], $9::bytea[], $10::bytea[], $11::bool[], $12::text[], $13::text[],
    $14::text[], $15::int8[], $16::int8[], $17::int8[], $18::int8[], $19::int8[], $20::text[],
    $21::text[], $22::int8[])
ON CONFLICT (message_id, id) DO NOTHING;

-- name: delivery_end
-- $1 endpoints, $2 messages, $3 lease numbers, $4 workers. Primary key: a plain comparison of the
-- workers would tempt the planner to walk all leases of each. Deletes only under the lease, and
-- tells what it deleted.
DELETE FROM posthaste.delivery
USING unnest($1::uuid[], $2::uuid[], $3::int8[], $4::uuid[])
    AS lease (endpoint_id, message_id, number, worker_id)
WHERE delivery.endpoint_id = lease.endpoint_id AND delivery.message_id = lease.message_id
    AND state = 1 AND lease_number = lease.number
    AND lease_worker IS NOT DISTINCT FROM lease.worker_id
RETURNING delivery.endpoint_id, delivery.message_id, lease_number;

-- name: delivery_wait
-- $1 endpoints, $2 messages, $3 lease numbers, $4 workers, $5 states (0 waiting, 2 held), $6 due,
-- $7 classes, $8 statuses. Primary key. Only under the lease, and tells what it moved. What is
-- replayed stays a replay.
UPDATE posthaste.delivery
SET state = lease.state, due_at = lease.due_at,
    class = CASE WHEN delivery.class = 3 THEN 3 ELSE lease.class END, trigger = 0,
    planned_at = NULL, lease_worker = NULL, lease_until = NULL,
    last_status = coalesce(lease.status, last_status)
FROM unnest($1::uuid[], $2::uuid[], $3::int8[], $4::uuid[], $5::int8[], $6::int8[], $7::int8[],
    $8::int8[])
    AS lease (endpoint_id, message_id, number, worker_id, state, due_at, class, status)
WHERE delivery.endpoint_id = lease.endpoint_id AND delivery.message_id = lease.message_id
    AND delivery.state = 1 AND lease_number = lease.number
    AND lease_worker IS NOT DISTINCT FROM lease.worker_id
RETURNING delivery.endpoint_id, delivery.message_id, lease_number;

-- name: delivery_remove
-- $1 endpoints, $2 messages. Primary key. Only from a transaction that has just read them.
DELETE FROM posthaste.delivery
USING unnest($1::uuid[], $2::uuid[]) AS old (endpoint_id, message_id)
WHERE delivery.endpoint_id = old.endpoint_id AND delivery.message_id = old.message_id;

-- name: ended_store
-- What became of deliveries, each named once. Once delivered stays delivered: a later attempt by
-- hand that fails takes nothing back.
INSERT INTO posthaste.ended
    (endpoint_id, message_id, application_id, state, cause, attempts, lease_number, accepted_at,
     ended_at, last_status)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int8[], $5::text[], $6::int8[],
    $7::int8[], $8::int8[], $9::int8[], $10::int8[])
ON CONFLICT (endpoint_id, message_id) DO UPDATE SET
    state = CASE WHEN ended.state = 3 THEN 3 ELSE excluded.state END,
    cause = CASE WHEN ended.state = 3 THEN NULL ELSE excluded.cause END,
    ended_at = CASE WHEN ended.state = 3 THEN ended.ended_at ELSE excluded.ended_at END,
    last_status = CASE WHEN ended.state = 3 THEN ended.last_status ELSE excluded.last_status END,
    attempts = excluded.attempts,
    lease_number = excluded.lease_number;

-- name: tally_add
-- $1 minutes, $2 worker, then what is added.
INSERT INTO posthaste.tally
    (minute, worker_id, delivered, failed, failed_attempts, timed, delivery_time)
SELECT minute, $2, delivered, failed, failed_attempts, timed, delivery_time
FROM unnest($1::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[])
    AS new (minute, delivered, failed, failed_attempts, timed, delivery_time)
ON CONFLICT (minute, worker_id) DO UPDATE SET
    delivered = tally.delivered + excluded.delivered, failed = tally.failed + excluded.failed,
    failed_attempts = tally.failed_attempts + excluded.failed_attempts,
    timed = tally.timed + excluded.timed,
    delivery_time = tally.delivery_time + excluded.delivery_time;

-- name: sketch_store
-- $1 scopes, $2 endpoints, $3 starts, $4 worker, $5 sketches. One worker's sketches of windows,
-- over their earlier selves.
INSERT INTO posthaste.window_sketch (scope, endpoint_id, start, worker_id, sketch)
SELECT scope, endpoint_id, start, $4, sketch
FROM unnest($1::int8[], $2::uuid[], $3::int8[], $5::bytea[])
    AS new (scope, endpoint_id, start, sketch)
ON CONFLICT (scope, endpoint_id, start, worker_id) DO UPDATE SET sketch = excluded.sketch;

-- name: endpoint_disable
-- $1 endpoint, $2 reason, $3 now. Primary key.
UPDATE posthaste.endpoint SET disabled = $2, updated_at = greatest($3, updated_at + 1)
WHERE id = $1 AND disabled IS NULL AND deleted_at IS NULL;

-- name: lane_close
-- $1 endpoint, $2 state (1 disabled, 2 deleted), $3 sweep (1 hold, 2 cancel). Primary key.
UPDATE posthaste.lane
SET state = $2::int8, sweep = $3::int8, next_due_at = NULL, endpoint_version = endpoint_version + 1
WHERE endpoint_id = $1;

-- name: routes_raise
-- $1 application. Primary key.
UPDATE posthaste.application SET routes_version = routes_version + 1 WHERE id = $1;

-- name: application_lock
-- only here: SQLite has one writer.
-- $1 applications. Primary key. Goes before the lanes of a transaction that changes routes.
SELECT id FROM posthaste.application WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE;

-- name: notice_insert
-- Word for operators, raised once.
INSERT INTO posthaste.notice (id, application_id, endpoint_id, kind, detail)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (id) DO NOTHING;

-- name: delivery_find
-- $1 endpoints, $2 messages. Primary key. Open deliveries.
SELECT delivery.endpoint_id, delivery.message_id, application_id, state, class, due_at, attempts,
    plan_attempts, trigger, planned_at, lease_number, lease_worker, lease_until, accepted_at,
    last_status
FROM unnest($1::uuid[], $2::uuid[]) AS wanted (endpoint_id, message_id)
JOIN posthaste.delivery
    ON delivery.endpoint_id = wanted.endpoint_id AND delivery.message_id = wanted.message_id;

-- name: delivery_release
-- $1 endpoints, $2 messages, $3 states (0 waiting, 2 held), $4 now, $5 whether attempts count.
-- Primary key. Due again at once.
UPDATE posthaste.delivery
SET state = new.state, due_at = $4,
    attempts = attempts - CASE WHEN $5 THEN 0 ELSE 1 END,
    plan_attempts = plan_attempts - CASE WHEN $5 OR trigger = 1 THEN 0 ELSE 1 END,
    lease_worker = NULL, lease_until = NULL
FROM unnest($1::uuid[], $2::uuid[], $3::int8[]) AS new (endpoint_id, message_id, state)
WHERE delivery.endpoint_id = new.endpoint_id AND delivery.message_id = new.message_id
    AND delivery.state = 1;

-- name: resend_find
-- $1 endpoint, $2 message. Primary keys. Where a resend would go, and whether it can.
SELECT endpoint.application_id, endpoint.disabled IS NOT NULL, message.payload IS NOT NULL,
    message.created_at
FROM posthaste.endpoint
JOIN posthaste.message ON message.application_id = endpoint.application_id AND message.id = $2
WHERE endpoint.id = $1 AND endpoint.deleted_at IS NULL;

-- name: resend_open
-- $1 endpoint, $2 message, $3 now. Primary key. One attempt by hand comes first; the plan is kept.
UPDATE posthaste.delivery
SET planned_at = CASE WHEN trigger = 1 THEN planned_at ELSE due_at END, trigger = 1, class = 0,
    due_at = $3, state = 0
WHERE endpoint_id = $1 AND message_id = $2;

-- name: resend_insert
-- $1 endpoint, $2 message, $3 application, $4 now, $5 accepted. Attempts and leases are numbered on
-- from where they had ended, if the delivery was there before.
INSERT INTO posthaste.delivery
    (endpoint_id, message_id, application_id, state, class, due_at, attempts, plan_attempts,
     trigger, lease_number, accepted_at, last_status, reopened)
SELECT $1, $2, $3, 0, 0, $4, coalesce(ended.attempts, 0), 0, 1, coalesce(ended.lease_number, 0),
    $5, ended.last_status, coalesce(ended.state = 4, false)
FROM (SELECT 1) AS one
LEFT JOIN posthaste.ended ON ended.endpoint_id = $1 AND ended.message_id = $2;
