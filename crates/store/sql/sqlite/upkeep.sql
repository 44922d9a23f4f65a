-- Workers, recovery, sweeps, tasks, retention.

-- name: worker_see
-- ?1 worker, ?2 now, ?3 whether it holds its lock. A worker that may hold leases from now on. One
-- that was silent for 12 s (HEARTBEAT_LOST_AFTER) and takes leases lives again.
INSERT INTO worker (id, heartbeat_at, locks) VALUES (?1, ?2, ?3)
ON CONFLICT (id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at, locks = excluded.locks
WHERE heartbeat_at < excluded.heartbeat_at - 12000000;

-- name: worker_heartbeat
-- ?1 worker, ?2 now, ?3 whether it holds its lock.
INSERT INTO worker (id, heartbeat_at, locks) VALUES (?1, ?2, ?3)
ON CONFLICT (id) DO UPDATE SET
    heartbeat_at = max(heartbeat_at, excluded.heartbeat_at), locks = excluded.locks;

-- name: workers
-- ?1 how many. All workers; there are few.
SELECT id, heartbeat_at, locks FROM worker ORDER BY id LIMIT ?1;

-- name: worker_delete
-- ?1 worker. Primary key.
DELETE FROM worker WHERE id = ?1;

-- name: leases_of
-- ?1 worker, ?2 how many. Index delivery_lease.
SELECT endpoint_id, message_id FROM delivery WHERE lease_worker = ?1 AND state = 1 LIMIT ?2;

-- name: leases_expired
-- ?1 worker, ?2 now, ?3 how many. Index delivery_lease; a worker has few leases.
SELECT endpoint_id, message_id FROM delivery
WHERE lease_worker = ?1 AND state = 1 AND lease_until <= ?2
LIMIT ?3;

-- name: sweep_next
-- Index lane_sweep. A lane whose endpoint was disabled or deleted while something waited.
SELECT endpoint_id FROM lane WHERE sweep <> 0 LIMIT 1;

-- name: sweep_find
-- ?1 endpoint. Primary key.
SELECT sweep FROM lane WHERE endpoint_id = ?1;

-- name: sweep_hold
-- ?1 endpoint, ?2 how many. Index delivery_due, then primary keys.
UPDATE delivery SET state = 2
WHERE (endpoint_id, message_id) IN (
    SELECT endpoint_id, message_id FROM delivery WHERE endpoint_id = ?1 AND state = 0 LIMIT ?2
);

-- name: sweep_cancel
-- ?1 endpoint, ?2 how many. Primary key; those under lease end when they are recorded.
SELECT message_id FROM delivery WHERE endpoint_id = ?1 AND state <> 1 LIMIT ?2;

-- name: sweep_done
-- ?1 endpoint. Primary key.
UPDATE lane SET sweep = 0 WHERE endpoint_id = ?1;

-- name: task_insert
-- A task; starting it twice is starting it once.
INSERT INTO task
    (id, endpoint_id, since, until, states, rate_per_second, status, replayed, cursor, paced_until,
     created_at, updated_at, skipped)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?10, ?11, ?12)
ON CONFLICT (id) DO NOTHING;

-- name: task_find
-- ?1 id. Primary keys.
SELECT task.id, lane.application_id, task.endpoint_id, since, until, states, rate_per_second,
    status, replayed, skipped, cursor, created_at, updated_at
FROM task
CROSS JOIN lane ON lane.endpoint_id = task.endpoint_id
WHERE task.id = ?1;

-- name: task_next
-- Index task_running: the one that waited longest goes first. One whose endpoint is disabled waits
-- until it is enabled.
SELECT lane.state, paced_until, task.id, lane.application_id, task.endpoint_id, since, until,
    states, rate_per_second, status, replayed, skipped, cursor, created_at, updated_at
FROM task
CROSS JOIN lane ON lane.endpoint_id = task.endpoint_id
WHERE task.status = 0 AND lane.state <> 1 AND lane.sweep = 0
ORDER BY updated_at
LIMIT 1;

-- name: replay_dead
-- ?1 endpoint, ?2 after message, ?3 before message, ?4 since, ?5 until, ?6 how many. Index
-- ended_dead. Those that are open again already are left alone. With whether the
-- payload is gone. The lists are complete.
SELECT message_id, ifnull((
    SELECT payload IS NULL FROM message_list AS list
    CROSS JOIN message ON message.seq = list.seq
    WHERE list.application_id = ended.application_id AND list.id = ended.message_id
), 1)
FROM ended INDEXED BY ended_dead
WHERE endpoint_id = ?1 AND state = 4 AND message_id > ?2 AND message_id < ?3
    AND accepted_at >= ?4 AND accepted_at < ?5
    AND NOT EXISTS (
        SELECT 1 FROM delivery
        WHERE delivery.endpoint_id = ?1 AND delivery.message_id = ended.message_id
    )
ORDER BY message_id
LIMIT ?6;

-- name: replay_held
-- ?1 endpoint, ?2 after message, ?3 before message, ?4 since, ?5 until, ?6 how many. Index
-- delivery_held. With whether the payload is gone.
SELECT message_id, ifnull((
    SELECT payload IS NULL FROM message WHERE message.seq = delivery.message_seq
), 1)
FROM delivery INDEXED BY delivery_held
WHERE endpoint_id = ?1 AND state = 2 AND message_id > ?2 AND message_id < ?3
    AND accepted_at >= ?4 AND accepted_at < ?5
ORDER BY message_id
LIMIT ?6;

-- name: replay_reopen
-- ?1 endpoint, ?2 message, ?3 due. Primary keys; the lists are complete. A dead letter gets a new
-- plan; attempts and leases are numbered on.
INSERT INTO delivery
    (endpoint_id, message_id, application_id, state, class, due_at, attempts, plan_attempts,
     trigger, lease_number, accepted_at, last_status, reopened, message_seq, ended_seq)
SELECT ended.endpoint_id, ended.message_id, ended.application_id, 0, 3, ?3, attempts, 0, 0,
    lease_number, accepted_at, last_status, 1, message_list.seq, ended.seq
FROM ended_list AS list
CROSS JOIN ended ON ended.seq = list.seq
CROSS JOIN message_list
    ON message_list.application_id = ended.application_id AND message_list.id = list.message_id
WHERE list.endpoint_id = ?1 AND list.message_id = ?2;

-- name: replay_release
-- ?1 endpoint, ?2 message, ?3 due. Primary key. A held delivery gets a new plan.
UPDATE delivery
SET state = 0, class = 3, due_at = ?3, plan_attempts = 0, trigger = 0, planned_at = NULL
WHERE endpoint_id = ?1 AND message_id = ?2 AND state = 2;

-- name: task_advance
-- ?1 id, ?2 status, ?3 replayed so far, ?4 cursor, ?5 paced until, ?6 now,
-- ?7 skipped so far. Primary key.
UPDATE task
SET status = ?2, replayed = ?3, cursor = ?4, paced_until = ?5, updated_at = ?6,
    skipped = ?7
WHERE id = ?1;

-- name: prune_payloads
-- ?1 now, ?2 how many. Primary keys; the lists are complete.
UPDATE message SET payload = NULL
WHERE seq IN (
    SELECT seq FROM expiry_list WHERE expires_at <= ?1 ORDER BY expires_at, seq LIMIT ?2
) AND expires_at <= ?1;

-- name: prune_expiries
-- ?1 now, ?2 how many. Primary key. Those whose payload has just gone.
-- only here: the other back-end has an index instead of the list.
DELETE FROM expiry_list
WHERE (expires_at, seq) IN (
    SELECT expires_at, seq FROM expiry_list WHERE expires_at <= ?1
    ORDER BY expires_at, seq
    LIMIT ?2
);

-- name: prune_idempotency
-- ?1 now, ?2 how many. Index idempotency_expiry.
DELETE FROM idempotency
WHERE key_hash IN (SELECT key_hash FROM idempotency WHERE expires_at <= ?1 LIMIT ?2);

-- name: prune_sketches
-- ?1 oldest start that is kept, ?2 how many. Index window_sketch_start.
DELETE FROM window_sketch
WHERE (scope, endpoint_id, start, worker_id) IN (
    SELECT scope, endpoint_id, start, worker_id FROM window_sketch WHERE start < ?1 LIMIT ?2
);

-- name: prune_tallies
-- ?1 oldest minute that is kept, ?2 how many. Primary key.
DELETE FROM tally
WHERE (minute, worker_id) IN (
    SELECT minute, worker_id FROM tally WHERE minute < ?1 LIMIT ?2
);

-- name: forget_next
-- ?1 after seq, ?2 accepted before, ?3 how many. Primary key; whether each may go, for which the
-- application's endpoints are asked for something open.
-- only here: the other back-end drops partitions.
SELECT seq, id, application_id, created_at, created_at < ?2 AND payload IS NULL AND NOT EXISTS (
    SELECT 1 FROM endpoint
    CROSS JOIN delivery ON delivery.endpoint_id = endpoint.id AND delivery.message_id = message.id
    WHERE endpoint.application_id = message.application_id
)
FROM message
WHERE seq > ?1
ORDER BY seq
LIMIT ?3;

-- name: forget_attempt_list
-- ?1 message. Primary keys; the lists are complete.
-- only here: see above.
DELETE FROM attempt_list
WHERE (endpoint_id, id) IN (
    SELECT attempt.endpoint_id, attempt.id FROM message_attempt_list AS list
    CROSS JOIN attempt ON attempt.seq = list.seq
    WHERE list.message_id = ?1
);

-- name: forget_attempts
-- ?1 message. Primary keys.
-- only here: see above.
DELETE FROM attempt WHERE seq IN (SELECT seq FROM message_attempt_list WHERE message_id = ?1);

-- name: forget_message_attempts
-- ?1 message. Primary key.
-- only here: see above.
DELETE FROM message_attempt_list WHERE message_id = ?1;

-- name: forget_find_ended
-- ?1 message, ?2 application. Index endpoint_page, then primary key: a message went to its
-- application's endpoints.
-- only here: see above.
SELECT list.seq, list.endpoint_id FROM endpoint
CROSS JOIN ended_list AS list ON list.endpoint_id = endpoint.id AND list.message_id = ?1
WHERE endpoint.application_id = ?2;

-- name: forget_ended
-- ?1 seq. Primary key.
-- only here: see above.
DELETE FROM ended WHERE seq = ?1;

-- name: forget_ended_list
-- ?1 endpoint, ?2 message. Primary key.
-- only here: see above.
DELETE FROM ended_list WHERE endpoint_id = ?1 AND message_id = ?2;

-- name: forget_message_list
-- ?1 message, ?2 application. Primary key.
-- only here: see above.
DELETE FROM message_list WHERE application_id = ?2 AND id = ?1;

-- name: forget_message
-- ?1 seq. Primary key.
-- only here: see above.
DELETE FROM message WHERE seq = ?1;

-- name: forget_done
-- Numbers that are free again are given once more, and must then count as not listed. Primary keys.
-- only here: see above.
UPDATE listed
SET message_seq = min(message_seq, ifnull((SELECT max(seq) FROM message), 0)),
    ended_seq = min(ended_seq, ifnull((SELECT max(seq) FROM ended), 0)),
    attempt_seq = min(attempt_seq, ifnull((SELECT max(seq) FROM attempt), 0));

-- name: check
-- Whether the database can be read.
SELECT page_count FROM pragma_page_count();

-- name: check_write
-- Whether it can be written: a change that changes nothing.
DELETE FROM worker WHERE id IS NULL;
