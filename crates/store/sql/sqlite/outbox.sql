-- The hot road: accept, claim, record, give back, resend.
-- `state` of a delivery is written out where a partial index is meant: 0 waiting, 1 leased, 2 held.

-- name: routes_version
-- ?1 application. Primary key. No row: it is not there (any more).
SELECT routes_version FROM application WHERE id = ?1 AND deleted_at IS NULL;

-- name: idempotency_find
-- ?1 key. Primary key.
SELECT request_hash, state, message_id, status, body, takeover_at, expires_at
FROM idempotency WHERE key_hash = ?1;

-- name: idempotency_accept
-- ?1 key, ?2 request, ?3 message, ?4 expiry. Overwrites what had expired.
INSERT INTO idempotency (key_hash, request_hash, state, message_id, expires_at)
VALUES (?1, ?2, 1, ?3, ?4)
ON CONFLICT (key_hash) DO UPDATE SET
    request_hash = excluded.request_hash, state = 1, message_id = excluded.message_id,
    status = NULL, body = NULL, takeover_at = NULL, expires_at = excluded.expires_at;

-- name: event_find
-- ?1 application, ?2 event id. Index message_event.
SELECT id FROM message WHERE application_id = ?1 AND event_id = ?2;

-- name: message_insert
-- Appends a message. Index message_event.
INSERT INTO message
    (application_id, id, event_id, event_type, channels, payload, created_at, expires_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8);

-- name: delivery_insert
-- The first state of a delivery: due, leased or held.
INSERT INTO delivery
    (endpoint_id, message_id, application_id, state, class, due_at, attempts, plan_attempts,
     trigger, lease_number, lease_worker, lease_until, accepted_at, reopened, message_seq)
VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6, ?6, 0, ?6, ?7, ?8, ?5, 0, ?9);

-- name: lane_pull
-- ?1 endpoint, ?2 when something of it is due. Primary key. Brings the lane's next due time
-- nearer, but not before its breaker or a wait that the receiver asked for lets anything go: so
-- new messages for a sick endpoint do not make claims look at it.
UPDATE lane
SET next_due_at = max(?2, iif(breaker = 0, ?2, breaker_until), ifnull(quiet_until, ?2))
WHERE endpoint_id = ?1 AND state = 0 AND sweep = 0
    AND (next_due_at IS NULL
        OR next_due_at > max(?2, iif(breaker = 0, ?2, breaker_until), ifnull(quiet_until, ?2)));

-- name: lanes_due
-- ?1 now, ?2 how many. Index lane_due: the lane that waited longest comes first, and what is not
-- due is not looked at.
SELECT endpoint_id, application_id, next_due_at, state, sweep, endpoint_version,
    breaker, breaker_until, consecutive_failures, cooldown, quiet_until, ramp, failing_since,
    last_failure_at, last_success_at, warned_percent, limiter_next_at, p95_ms
FROM lane
WHERE next_due_at <= ?1
ORDER BY next_due_at
LIMIT ?2;

-- name: lanes_next
-- ?1 how many. Index lane_due: when the next lanes are due.
SELECT endpoint_id, next_due_at FROM lane
WHERE next_due_at IS NOT NULL
ORDER BY next_due_at
LIMIT ?1;

-- name: lane_find
-- ?1 endpoint. Primary key.
SELECT endpoint_id, application_id, next_due_at, state, sweep, endpoint_version,
    breaker, breaker_until, consecutive_failures, cooldown, quiet_until, ramp, failing_since,
    last_failure_at, last_success_at, warned_percent, limiter_next_at, p95_ms
FROM lane
WHERE endpoint_id = ?1;

-- name: lane_store
-- ?1 endpoint, then next due time and health. Primary key.
UPDATE lane
SET next_due_at = ?2, breaker = ?3, breaker_until = ?4, consecutive_failures = ?5, cooldown = ?6,
    quiet_until = ?7, ramp = ?8, failing_since = ?9, last_failure_at = ?10, last_success_at = ?11,
    warned_percent = ?12, limiter_next_at = ?13, p95_ms = ?14
WHERE endpoint_id = ?1;

-- name: lane_due_set
-- ?1 endpoint, ?2 next due time or NULL. Primary key.
UPDATE lane SET next_due_at = ?2 WHERE endpoint_id = ?1;

-- name: lane_leased
-- ?1 endpoint. How many of its deliveries are under lease: per worker a range of delivery_lease,
-- because walking the lane itself would walk its backlog.
SELECT count(*) FROM worker
CROSS JOIN delivery INDEXED BY delivery_lease
    ON delivery.lease_worker = worker.id AND delivery.endpoint_id = ?1
WHERE delivery.state = 1;

-- name: lane_waiting
-- ?1 endpoint, ?2 now. Whether something waits that a drain may pull forward: anything but
-- replays, which keep their own pace. Index delivery_due.
SELECT EXISTS (
    SELECT 1 FROM delivery WHERE endpoint_id = ?1 AND state = 0 AND class < 3
) OR EXISTS (
    SELECT 1 FROM delivery WHERE endpoint_id = ?1 AND state = 0 AND class = 3 AND due_at <= ?2
);

-- name: application_limit
-- ?1 application. Primary key.
SELECT throttle_rate, limiter_next_at FROM application WHERE id = ?1;

-- name: application_limit_store
-- ?1 application, ?2 the limiter's state. Primary key.
UPDATE application SET limiter_next_at = ?2 WHERE id = ?1;

-- name: claim_endpoint
-- ?1 endpoint. Primary key.
SELECT id, application_id, uid, url, description, disabled, event_types, channels, throttle_rate,
    version, metadata, headers, secrets, policy, created_at, updated_at
FROM endpoint WHERE id = ?1;

-- name: waiting_of_class
-- ?1 endpoint, ?2 class, ?3 due until, ?4 how many. Index delivery_due: walked from the oldest.
SELECT message_id, class, due_at, attempts, plan_attempts, trigger, planned_at, lease_number,
    accepted_at, last_status
FROM delivery
WHERE endpoint_id = ?1 AND class = ?2 AND state = 0 AND due_at <= ?3
ORDER BY due_at
LIMIT ?4;

-- name: waiting_next
-- ?1 endpoint, ?2 class. Index delivery_due.
SELECT due_at FROM delivery
WHERE endpoint_id = ?1 AND class = ?2 AND state = 0
ORDER BY due_at
LIMIT 1;

-- name: delivery_lease
-- ?1 endpoint, ?2 message, then the lease and its counts. Primary key.
UPDATE delivery
SET state = 1, lease_number = ?3, lease_worker = ?4, lease_until = ?5, attempts = ?6,
    plan_attempts = ?7, trigger = ?8, planned_at = ?9
WHERE endpoint_id = ?1 AND message_id = ?2;

-- name: claim_message
-- ?1 endpoint, ?2 message. Primary keys.
SELECT message.application_id, id, event_id, event_type, channels, payload, created_at, expires_at
FROM delivery
CROSS JOIN message ON message.seq = delivery.message_seq
WHERE delivery.endpoint_id = ?1 AND delivery.message_id = ?2;

-- name: attempt_insert
-- Appends an attempt with what came of it.
INSERT INTO attempt
    (message_id, id, endpoint_id, number, trigger, started_at, url, status, retry_after, body,
     body_cut, failure, failure_phase, failure_detail, dns, connect, tls, first_byte, total,
     remote, verdict, next_attempt_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19,
    ?20, ?21, ?22);

-- name: attempt_kept
-- ?1 message, ?2 id. Primary key of a list that is complete. Whether it was recorded before.
-- only here: the other back-end has an index for it, and keeps the first by that.
SELECT EXISTS (SELECT 1 FROM message_attempt_list WHERE message_id = ?1 AND id = ?2);

-- name: delivery_end
-- ?1 endpoint, ?2 message, ?3 lease number, ?4 worker. Primary key. Deletes only under the lease,
-- and only what ends for the first time.
DELETE FROM delivery
WHERE endpoint_id = ?1 AND message_id = ?2 AND state = 1 AND lease_number = ?3
    AND lease_worker = ?4 AND ended_seq IS NULL;

-- name: delivery_wait
-- ?1 endpoint, ?2 message, ?3 lease number, ?4 worker, ?5 state (0 waiting, 2 held), ?6 due,
-- ?7 class, ?8 status. Primary key. Only under the lease. What is replayed stays a replay.
UPDATE delivery
SET state = ?5, due_at = ?6, class = iif(class = 3, 3, ?7), trigger = 0, planned_at = NULL,
    lease_worker = NULL, lease_until = NULL, last_status = ifnull(?8, last_status)
WHERE endpoint_id = ?1 AND message_id = ?2 AND state = 1 AND lease_number = ?3
    AND lease_worker = ?4;

-- name: delivery_remove
-- ?1 endpoint, ?2 message. Primary key. Only from a transaction that has just read it. Returns
-- where it is among the ended, if it had ended before.
DELETE FROM delivery WHERE endpoint_id = ?1 AND message_id = ?2 RETURNING ended_seq;

-- name: ended_store
-- What became of a delivery that had not ended before.
INSERT INTO ended
    (endpoint_id, message_id, application_id, state, cause, attempts, lease_number, accepted_at,
     ended_at, last_status)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10);

-- name: ended_again
-- ?1 where it is among the ended, ?2 state, ?3 cause, ?4 attempts, ?5 lease number, ?6 ended,
-- ?7 status. Primary key. Once delivered stays delivered: a later attempt by hand that fails takes
-- nothing back.
-- only here: the other back-end finds by itself whether there is one.
UPDATE ended
SET state = iif(state = 3, 3, ?2), cause = iif(state = 3, NULL, ?3), attempts = ?4,
    lease_number = ?5, ended_at = iif(state = 3, ended_at, ?6),
    last_status = iif(state = 3, last_status, ?7)
WHERE seq = ?1;

-- name: tally_add
-- ?1 minute, ?2 worker, then what is added.
INSERT INTO tally (minute, worker_id, delivered, failed, failed_attempts, timed, delivery_time)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (minute, worker_id) DO UPDATE SET
    delivered = delivered + excluded.delivered, failed = failed + excluded.failed,
    failed_attempts = failed_attempts + excluded.failed_attempts,
    timed = timed + excluded.timed, delivery_time = delivery_time + excluded.delivery_time;

-- name: sketch_store
-- One worker's sketch of one window, over its earlier self.
INSERT INTO window_sketch (scope, endpoint_id, start, worker_id, sketch)
VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (scope, endpoint_id, start, worker_id) DO UPDATE SET sketch = excluded.sketch;

-- name: endpoint_disable
-- ?1 endpoint, ?2 reason, ?3 now. Primary key.
UPDATE endpoint SET disabled = ?2, updated_at = max(?3, updated_at + 1)
WHERE id = ?1 AND disabled IS NULL AND deleted_at IS NULL;

-- name: lane_close
-- ?1 endpoint, ?2 state (1 disabled, 2 deleted), ?3 sweep (1 hold, 2 cancel). Primary key.
UPDATE lane
SET state = ?2, sweep = ?3, next_due_at = NULL, endpoint_version = endpoint_version + 1
WHERE endpoint_id = ?1;

-- name: routes_raise
-- ?1 application. Primary key.
UPDATE application SET routes_version = routes_version + 1 WHERE id = ?1;

-- name: notice_insert
-- Word for operators, raised once.
INSERT INTO notice (id, application_id, endpoint_id, kind, detail) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (id) DO NOTHING;

-- name: delivery_find
-- ?1 endpoint, ?2 message. Primary key. An open delivery.
SELECT application_id, state, class, due_at, attempts, plan_attempts, trigger, planned_at,
    lease_number, lease_worker, lease_until, accepted_at, last_status
FROM delivery WHERE endpoint_id = ?1 AND message_id = ?2;

-- name: delivery_release
-- ?1 endpoint, ?2 message, ?3 state (0 waiting, 2 held), ?4 now, ?5 whether the attempt counts.
-- Primary key. Due again at once.
UPDATE delivery
SET state = ?3, due_at = ?4, attempts = attempts - iif(?5, 0, 1),
    plan_attempts = plan_attempts - iif(?5 OR trigger = 1, 0, 1),
    lease_worker = NULL, lease_until = NULL
WHERE endpoint_id = ?1 AND message_id = ?2 AND state = 1;

-- name: resend_find
-- ?1 endpoint, ?2 message. Primary keys; the lists are complete. Where a resend would go, and
-- whether it can.
SELECT endpoint.application_id, endpoint.disabled IS NOT NULL, message.payload IS NOT NULL,
    message.created_at
FROM endpoint
CROSS JOIN message_list AS list ON list.application_id = endpoint.application_id AND list.id = ?2
CROSS JOIN message ON message.seq = list.seq
WHERE endpoint.id = ?1 AND endpoint.deleted_at IS NULL;

-- name: resend_open
-- ?1 endpoint, ?2 message, ?3 now. Primary key. One attempt by hand comes first; the plan is kept.
UPDATE delivery
SET planned_at = iif(trigger = 1, planned_at, due_at), trigger = 1, class = 0, due_at = ?3,
    state = 0
WHERE endpoint_id = ?1 AND message_id = ?2;

-- name: resend_insert
-- ?1 endpoint, ?2 message, ?3 application, ?4 now, ?5 accepted. Primary keys; the lists are
-- complete. Attempts and leases are numbered on from where they had ended, if the delivery was
-- there before.
INSERT INTO delivery
    (endpoint_id, message_id, application_id, state, class, due_at, attempts, plan_attempts,
     trigger, lease_number, accepted_at, last_status, reopened, message_seq, ended_seq)
SELECT ?1, ?2, ?3, 0, 0, ?4, ifnull(ended.attempts, 0), 0, 1, ifnull(ended.lease_number, 0),
    ?5, ended.last_status, ifnull(ended.state = 4, 0), list.seq, ended.seq
FROM message_list AS list
LEFT JOIN ended_list ON ended_list.endpoint_id = ?1 AND ended_list.message_id = ?2
LEFT JOIN ended ON ended.seq = ended_list.seq
WHERE list.application_id = ?3 AND list.id = ?2;
