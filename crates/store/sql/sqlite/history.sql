-- What was and how it stands.
-- Lists are walked in either direction: a statement that ends in ASC is also run with DESC.
-- Filters of messages: ?5 channel, ?6 event types as JSON, ?7 before, ?8 after; NULL: all.

-- name: message_by_id
-- ?1 application, ?2 id. Primary keys; what is not listed yet is few rows, and looked through.
SELECT application_id, id, event_id, event_type, channels, payload, created_at, expires_at
FROM message
WHERE seq = (SELECT seq FROM message_list WHERE application_id = ?1 AND id = ?2)
UNION ALL
SELECT application_id, id, event_id, event_type, channels, payload, created_at, expires_at
FROM message
WHERE seq > (SELECT message_seq FROM listed WHERE id = 1) AND application_id = ?1 AND id = ?2
LIMIT 1;

-- name: message_by_event
-- ?1 application, ?2 event id. Index message_event.
SELECT application_id, id, event_id, event_type, channels, payload, created_at, expires_at
FROM message WHERE application_id = ?1 AND event_id = ?2;

-- name: messages_page
-- ?1 application, ?2 after id, ?3 before id, ?4 how many, filters. Primary keys of the list, then
-- of the messages.
SELECT message.application_id, message.id, event_id, event_type, channels, payload,
    message.created_at, message.expires_at
FROM message_list AS list
CROSS JOIN message ON message.seq = list.seq
WHERE list.application_id = ?1 AND list.id > ?2 AND list.id < ?3
    AND (?5 IS NULL OR EXISTS (SELECT 1 FROM json_each(message.channels) WHERE value = ?5))
    AND (?6 IS NULL OR event_type IN (SELECT value FROM json_each(?6)))
    AND (?7 IS NULL OR message.created_at < ?7) AND (?8 IS NULL OR message.created_at >= ?8)
ORDER BY list.id ASC
LIMIT ?4;

-- name: attempt_find
-- ?1 application, ?2 message, ?3 attempt. Primary keys of the lists, then of the attempts.
SELECT attempt.message_id, attempt.id, attempt.endpoint_id, number, trigger, started_at, url,
    status, retry_after, body, body_cut, failure, failure_phase, failure_detail, dns, connect, tls,
    first_byte, total, remote, verdict, next_attempt_at
FROM message_list
CROSS JOIN message_attempt_list AS list ON list.message_id = message_list.id
CROSS JOIN attempt ON attempt.seq = list.seq
WHERE message_list.application_id = ?1 AND message_list.id = ?2 AND list.id = ?3;

-- name: attempts_of_message
-- ?12 application, ?1 message, ?2 after id, ?3 before id, ?4 how many, filters of the message but
-- ?7 and ?8 of when it started, ?9 delivered, ?10 status class, ?11 endpoint. Primary keys of the
-- lists, then of what they list.
SELECT attempt.message_id, attempt.id, attempt.endpoint_id, number, trigger, started_at, url,
    status, retry_after, body, body_cut, failure, failure_phase, failure_detail, dns, connect, tls,
    first_byte, total, remote, verdict, next_attempt_at
FROM message_list
CROSS JOIN message ON message.seq = message_list.seq
CROSS JOIN message_attempt_list AS list ON list.message_id = message_list.id
CROSS JOIN attempt ON attempt.seq = list.seq
WHERE message_list.application_id = ?12 AND message_list.id = ?1 AND list.id > ?2 AND list.id < ?3
    AND (?11 IS NULL OR attempt.endpoint_id = ?11)
    AND (?5 IS NULL OR EXISTS (SELECT 1 FROM json_each(message.channels) WHERE value = ?5))
    AND (?6 IS NULL OR event_type IN (SELECT value FROM json_each(?6)))
    AND (?7 IS NULL OR started_at < ?7) AND (?8 IS NULL OR started_at >= ?8)
    AND (?9 IS NULL OR ?9 = (ifnull(status, 0) BETWEEN 200 AND 299))
    AND (?10 IS NULL OR status / 100 = ?10 / 100)
ORDER BY list.id ASC
LIMIT ?4;

-- name: attempts_of_endpoint
-- ?1 endpoint, ?2 after id, ?3 before id, ?4 how many, filters as above. Primary keys of the lists
-- and of what they list.
SELECT attempt.message_id, attempt.id, attempt.endpoint_id, number, trigger, started_at,
    attempt.url, status, retry_after, body, body_cut, failure, failure_phase, failure_detail, dns,
    connect, tls, first_byte, total, remote, verdict, next_attempt_at
FROM endpoint
CROSS JOIN attempt_list AS list ON list.endpoint_id = endpoint.id
CROSS JOIN attempt ON attempt.seq = list.seq
CROSS JOIN message_list
    ON message_list.application_id = endpoint.application_id
    AND message_list.id = attempt.message_id
CROSS JOIN message ON message.seq = message_list.seq
WHERE endpoint.id = ?1 AND list.id > ?2 AND list.id < ?3
    AND (?11 IS NULL OR attempt.endpoint_id = ?11)
    AND (?5 IS NULL OR EXISTS (SELECT 1 FROM json_each(message.channels) WHERE value = ?5))
    AND (?6 IS NULL OR event_type IN (SELECT value FROM json_each(?6)))
    AND (?7 IS NULL OR started_at < ?7) AND (?8 IS NULL OR started_at >= ?8)
    AND (?9 IS NULL OR ?9 = (ifnull(status, 0) BETWEEN 200 AND 299))
    AND (?10 IS NULL OR status / 100 = ?10 / 100)
ORDER BY list.id ASC
LIMIT ?4;

-- name: messages_of_endpoint
-- ?1 endpoint, ?2 after message, ?3 before message, ?4 how many, filters, ?9 states as JSON or
-- NULL. Primary keys: two ordered walks, over what is open and over what has ended, are merged.
SELECT message.application_id, delivery.message_id AS id, event_id, event_type, channels, payload,
    message.created_at, message.expires_at,
    delivery.endpoint_id, delivery.message_id, delivery.application_id, delivery.state, attempts,
    accepted_at, due_at, NULL, NULL, last_status
FROM delivery
CROSS JOIN message ON message.seq = delivery.message_seq
WHERE delivery.endpoint_id = ?1 AND delivery.message_id > ?2 AND delivery.message_id < ?3
    AND (?5 IS NULL OR EXISTS (SELECT 1 FROM json_each(message.channels) WHERE value = ?5))
    AND (?6 IS NULL OR event_type IN (SELECT value FROM json_each(?6)))
    AND (?7 IS NULL OR message.created_at < ?7) AND (?8 IS NULL OR message.created_at >= ?8)
    AND (?9 IS NULL OR CASE delivery.state WHEN 1 THEN 'in_flight' WHEN 2 THEN 'held'
            ELSE iif(attempts = 0, 'pending', 'awaiting_retry') END
        IN (SELECT value FROM json_each(?9)))
UNION ALL
SELECT message.application_id, list.message_id AS id, event_id, event_type, channels, payload,
    message.created_at, message.expires_at,
    ended.endpoint_id, ended.message_id, ended.application_id, ended.state, attempts,
    accepted_at, NULL, ended_at, cause, last_status
FROM ended_list AS list
CROSS JOIN ended ON ended.seq = list.seq
CROSS JOIN message_list
    ON message_list.application_id = ended.application_id AND message_list.id = list.message_id
CROSS JOIN message ON message.seq = message_list.seq
WHERE list.endpoint_id = ?1 AND list.message_id > ?2 AND list.message_id < ?3
    AND NOT EXISTS (
        SELECT 1 FROM delivery
        WHERE delivery.endpoint_id = ?1 AND delivery.message_id = ended.message_id
    )
    AND (?5 IS NULL OR EXISTS (SELECT 1 FROM json_each(message.channels) WHERE value = ?5))
    AND (?6 IS NULL OR event_type IN (SELECT value FROM json_each(?6)))
    AND (?7 IS NULL OR message.created_at < ?7) AND (?8 IS NULL OR message.created_at >= ?8)
    AND (?9 IS NULL OR CASE ended.state WHEN 3 THEN 'delivered' WHEN 4 THEN 'dead_letter'
            ELSE 'cancelled' END
        IN (SELECT value FROM json_each(?9)))
ORDER BY id ASC
LIMIT ?4;

-- name: messages_of_endpoint_late
-- Parameters as above. What ended after the lists were completed, in no order: few rows, and none
-- of them is open any more.
-- only here: the other back-end has indexes instead of lists.
SELECT message.application_id, ended.message_id AS id, event_id, event_type, channels, payload,
    message.created_at, message.expires_at,
    ended.endpoint_id, ended.message_id, ended.application_id, ended.state, attempts,
    accepted_at, NULL, ended_at, cause, last_status
FROM ended
CROSS JOIN message_list
    ON message_list.application_id = ended.application_id AND message_list.id = ended.message_id
CROSS JOIN message ON message.seq = message_list.seq
WHERE ended.seq > (SELECT ended_seq FROM listed WHERE id = 1)
    AND ended.endpoint_id = ?1 AND ended.message_id > ?2 AND ended.message_id < ?3
    AND NOT EXISTS (
        SELECT 1 FROM delivery
        WHERE delivery.endpoint_id = ?1 AND delivery.message_id = ended.message_id
    )
    AND (?5 IS NULL OR EXISTS (SELECT 1 FROM json_each(message.channels) WHERE value = ?5))
    AND (?6 IS NULL OR event_type IN (SELECT value FROM json_each(?6)))
    AND (?7 IS NULL OR message.created_at < ?7) AND (?8 IS NULL OR message.created_at >= ?8)
    AND (?9 IS NULL OR CASE ended.state WHEN 3 THEN 'delivered' WHEN 4 THEN 'dead_letter'
            ELSE 'cancelled' END
        IN (SELECT value FROM json_each(?9)));

-- name: deliveries_of_message
-- ?1 application, ?2 after endpoint, ?3 before endpoint, ?4 how many, ?5 message. Index
-- endpoint_page, then primary keys: the application's endpoints are few, and so no index over the
-- hot table is needed. What is open takes precedence; what ended a moment ago is not listed yet.
SELECT endpoint.id, ?5, endpoint.application_id, ifnull(delivery.state, ended.state),
    ifnull(delivery.attempts, ended.attempts), ifnull(delivery.accepted_at, ended.accepted_at),
    delivery.due_at, iif(delivery.state IS NULL, ended.ended_at, NULL),
    iif(delivery.state IS NULL, ended.cause, NULL),
    iif(delivery.state IS NULL, ended.last_status, delivery.last_status)
FROM endpoint
LEFT JOIN delivery ON delivery.endpoint_id = endpoint.id AND delivery.message_id = ?5
LEFT JOIN ended ON ended.seq = ifnull(
    (SELECT seq FROM ended_list WHERE endpoint_id = endpoint.id AND message_id = ?5),
    (SELECT seq FROM ended AS late
        WHERE late.seq > (SELECT ended_seq FROM listed WHERE id = 1)
            AND late.endpoint_id = endpoint.id AND late.message_id = ?5)
)
WHERE endpoint.application_id = ?1 AND endpoint.id > ?2 AND endpoint.id < ?3
    AND (delivery.state IS NOT NULL OR ended.state IS NOT NULL)
ORDER BY endpoint.id ASC
LIMIT ?4;

-- name: delivery_open
-- ?1 endpoint, ?2 message. Primary key.
SELECT endpoint_id, message_id, application_id, state, attempts, accepted_at, due_at, NULL, NULL,
    last_status
FROM delivery WHERE endpoint_id = ?1 AND message_id = ?2;

-- name: delivery_ended
-- ?1 endpoint, ?2 message. Primary keys; what is not listed yet is few rows, and looked through.
SELECT endpoint_id, message_id, application_id, state, attempts, accepted_at, NULL, ended_at,
    cause, last_status
FROM ended WHERE seq = (SELECT seq FROM ended_list WHERE endpoint_id = ?1 AND message_id = ?2)
UNION ALL
SELECT endpoint_id, message_id, application_id, state, attempts, accepted_at, NULL, ended_at,
    cause, last_status
FROM ended
WHERE seq > (SELECT ended_seq FROM listed WHERE id = 1) AND endpoint_id = ?1 AND message_id = ?2
LIMIT 1;

-- name: dead_letters_page
-- ?1 applications in hexadecimal as JSON or NULL for all, ?2 after message, ?3 before message,
-- ?4 given up before, ?5 given up since. Index ended_dead_page; the reader stops when it has
-- enough.
-- Those that are being sent again are not among them.
SELECT endpoint_id, message_id, application_id, state, attempts, accepted_at, NULL, ended_at,
    cause, last_status
FROM ended INDEXED BY ended_dead_page
WHERE state = 4 AND message_id > ?2 AND message_id < ?3
    AND (?1 IS NULL OR hex(application_id) IN (SELECT value FROM json_each(?1)))
    AND (?4 IS NULL OR ended_at < ?4) AND (?5 IS NULL OR ended_at >= ?5)
    AND NOT EXISTS (
        SELECT 1 FROM delivery WHERE delivery.endpoint_id = ended.endpoint_id
            AND delivery.message_id = ended.message_id
    )
ORDER BY message_id ASC, endpoint_id ASC;

-- name: dead_letters_of_endpoint
-- As above, ?6 endpoint. Index ended_dead.
SELECT endpoint_id, message_id, application_id, state, attempts, accepted_at, NULL, ended_at,
    cause, last_status
FROM ended INDEXED BY ended_dead
WHERE endpoint_id = ?6 AND state = 4 AND message_id > ?2 AND message_id < ?3
    AND (?1 IS NULL OR hex(application_id) IN (SELECT value FROM json_each(?1)))
    AND (?4 IS NULL OR ended_at < ?4) AND (?5 IS NULL OR ended_at >= ?5)
    AND NOT EXISTS (
        SELECT 1 FROM delivery
        WHERE delivery.endpoint_id = ?6 AND delivery.message_id = ended.message_id
    )
ORDER BY message_id ASC;

-- name: health_lane
-- ?1 endpoint. Primary key.
SELECT breaker, breaker_until, consecutive_failures, cooldown, quiet_until, ramp, failing_since,
    last_failure_at, last_success_at, warned_percent, limiter_next_at, p95_ms
FROM lane WHERE endpoint_id = ?1 AND state <> 2;

-- name: health_windows
-- ?1 endpoint, ?2 since. Primary key; at most 25 windows per worker.
SELECT start, sketch FROM window_sketch
WHERE scope = 0 AND endpoint_id = ?1 AND start >= ?2
ORDER BY start;

-- name: health_waiting
-- ?1 endpoint. Index delivery_due.
SELECT count(*) FROM delivery WHERE endpoint_id = ?1 AND state = 0;

-- name: health_held
-- ?1 endpoint. Index delivery_held.
SELECT count(*) FROM delivery WHERE endpoint_id = ?1 AND state = 2;

-- name: status_open
-- Open deliveries by state and the first due time, in one walk over the (small) table of open ones.
SELECT count(*) FILTER (WHERE state = 0 AND attempts = 0),
    count(*) FILTER (WHERE state = 0 AND attempts > 0),
    count(*) FILTER (WHERE state = 1), count(*) FILTER (WHERE state = 2),
    count(*) FILTER (WHERE reopened = 1), min(due_at) FILTER (WHERE state = 0)
FROM delivery;

-- name: status_oldest
-- The oldest delivery that is on its way; held ones wait for a person.
SELECT endpoint_id, message_id, accepted_at FROM delivery
WHERE state <> 2
ORDER BY accepted_at, message_id, endpoint_id
LIMIT 1;

-- name: status_dead
-- Index ended_dead or its like.
SELECT count(*) FROM ended WHERE state = 4;

-- name: status_tally
-- ?1 first minute. Primary key.
SELECT ifnull(sum(delivered), 0), ifnull(sum(failed), 0), ifnull(sum(failed_attempts), 0),
    ifnull(sum(timed), 0), ifnull(sum(delivery_time), 0)
FROM tally WHERE minute >= ?1;

-- name: status_windows
-- ?1 since. Primary key.
SELECT sketch FROM window_sketch WHERE scope = 1 AND endpoint_id = x'' AND start >= ?1;

-- name: status_lanes
-- One walk over the lanes in use or disabled.
SELECT count(*) FILTER (WHERE state = 0 AND breaker <> 0), count(*) FILTER (WHERE state = 1)
FROM lane;

-- name: status_workers
-- ?1 alive since. There are few workers.
SELECT count(*) FROM worker WHERE heartbeat_at >= ?1;

-- name: notices_all
-- ?1 how many. Primary key.
SELECT id, application_id, endpoint_id, kind, detail FROM notice ORDER BY id DESC LIMIT ?1;

-- name: notices_of_application
-- ?1 application, ?2 how many. Index notice_page.
SELECT id, application_id, endpoint_id, kind, detail FROM notice
WHERE application_id = ?1
ORDER BY id DESC
LIMIT ?2;

-- name: lists_behind
-- Up to where the lists are complete, and up to where there is something to list. Primary keys.
-- only here: small pages make each row of a list dear; the other back-end has indexes instead.
SELECT message_seq, ended_seq, attempt_seq,
    ifnull((SELECT max(seq) FROM message), 0), ifnull((SELECT max(seq) FROM ended), 0),
    ifnull((SELECT max(seq) FROM attempt), 0)
FROM listed;

-- name: list_messages
-- ?1 after seq, ?2 up to seq. Primary key; sorted, so that each page is written once. What can be
-- made anew from what it lists never stands in the way of a commit.
-- only here: see above.
INSERT INTO message_list (application_id, id, seq)
SELECT application_id, id, seq FROM message WHERE seq > ?1 AND seq <= ?2
ORDER BY application_id, id
ON CONFLICT (application_id, id) DO UPDATE SET seq = excluded.seq;

-- name: list_expiries
-- ?1 after seq, ?2 up to seq. Primary key.
-- only here: see above.
INSERT INTO expiry_list (expires_at, seq)
SELECT expires_at, seq FROM message WHERE seq > ?1 AND seq <= ?2 AND payload IS NOT NULL
ORDER BY expires_at, seq
ON CONFLICT (expires_at, seq) DO NOTHING;

-- name: list_ended
-- ?1 after seq, ?2 up to seq. Primary key.
-- only here: see above.
INSERT INTO ended_list (endpoint_id, message_id, seq)
SELECT endpoint_id, message_id, seq FROM ended WHERE seq > ?1 AND seq <= ?2
ORDER BY endpoint_id, message_id
ON CONFLICT (endpoint_id, message_id) DO UPDATE SET seq = excluded.seq;

-- name: list_attempts
-- ?1 after seq, ?2 up to seq. Primary key.
-- only here: see above.
INSERT INTO attempt_list (endpoint_id, id, seq)
SELECT endpoint_id, id, seq FROM attempt WHERE seq > ?1 AND seq <= ?2
ORDER BY endpoint_id, id
ON CONFLICT (endpoint_id, id) DO UPDATE SET seq = excluded.seq;

-- name: list_attempts_of_messages
-- ?1 after seq, ?2 up to seq. Primary key.
-- only here: see above.
INSERT INTO message_attempt_list (message_id, id, seq)
SELECT message_id, id, seq FROM attempt WHERE seq > ?1 AND seq <= ?2
ORDER BY message_id, id
ON CONFLICT (message_id, id) DO UPDATE SET seq = excluded.seq;

-- name: lists_advance
-- ?1, ?2, ?3 up to where messages, ended deliveries and attempts are listed now.
-- only here: see above.
UPDATE listed SET message_seq = ?1, ended_seq = ?2, attempt_seq = ?3;
