-- What was and how it stands.
-- Lists are walked in either direction: a statement that ends in ASC is also run with DESC.
-- Filters of messages: $5 channel, $6 event types, $7 before, $8 after; NULL: all. Statements are
-- planned for the values they are given, so a filter that is not set costs nothing.
-- A subquery with OFFSET 0 or LIMIT 1 is asked row by row, through its index, whatever the
-- statistics say: those of the hot tables are always old.

-- name: message_by_id
-- $1 application, $2 id. Primary key of one partition.
SELECT application_id, id, event_id, event_type, channels, payload, created_at, expires_at
FROM posthaste.message WHERE application_id = $1 AND id = $2;

-- name: message_by_event
-- $1 application, $2 event id. Primary keys of event and of one partition.
SELECT message.application_id, id, message.event_id, event_type, channels, payload, created_at,
    expires_at
FROM posthaste.message
WHERE id = (
    SELECT message_id FROM posthaste.event WHERE application_id = $1 AND event.event_id = $2
);

-- name: messages_page
-- $1 application, $2 after id, $3 before id, $4 how many, filters, $9 bytes of payload after which
-- no further row is read. Index message_page of each partition, merged.
SELECT application_id, id, event_id, event_type, channels, payload, created_at, expires_at
FROM (
    SELECT application_id, id, event_id, event_type, channels, payload, created_at, expires_at,
        sum(octet_length(payload)) OVER (
            ORDER BY id ASC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS bytes_before
    FROM posthaste.message
    WHERE application_id = $1 AND id > $2 AND id < $3
        AND ($5 IS NULL OR channels::jsonb ? $5)
        AND ($6 IS NULL OR event_type = ANY ($6))
        AND ($7 IS NULL OR created_at < $7) AND ($8 IS NULL OR created_at >= $8)
    ORDER BY id ASC
    LIMIT $4
) AS page
WHERE coalesce(bytes_before, 0) <= $9
ORDER BY id ASC;

-- name: attempt_find
-- $1 application, $2 message, $3 attempt. Primary keys of one partition.
SELECT message_id, id, endpoint_id, number, trigger, started_at, url, status, retry_after, body,
    body_cut, failure, failure_phase, failure_detail, dns, connect, tls, first_byte, total, remote,
    verdict, next_attempt_at
FROM posthaste.attempt
WHERE message_id = $2 AND id = $3
    AND EXISTS (SELECT 1 FROM posthaste.message WHERE application_id = $1 AND message.id = $2);

-- name: attempts_of_message
-- $12 application, $1 message, $2 after id, $3 before id, $4 how many, filters of the message but
-- $7 and $8 of when it started, $9 delivered, $10 status class, $11 endpoint. Primary keys of one
-- partition.
SELECT message_id, id, endpoint_id, number, trigger, started_at, url, status, retry_after, body,
    body_cut, failure, failure_phase, failure_detail, dns, connect, tls, first_byte, total, remote,
    verdict, next_attempt_at
FROM posthaste.attempt
WHERE message_id = $1 AND id > $2 AND id < $3
    AND EXISTS (
        SELECT 1 FROM posthaste.message
        WHERE application_id = $12 AND message.id = $1
            AND ($5 IS NULL OR channels::jsonb ? $5)
            AND ($6 IS NULL OR event_type = ANY ($6))
    )
    AND ($11 IS NULL OR endpoint_id = $11)
    AND ($7 IS NULL OR started_at < $7) AND ($8 IS NULL OR started_at >= $8)
    AND ($9 IS NULL OR $9 = (coalesce(status, 0) BETWEEN 200 AND 299))
    AND ($10 IS NULL OR status / 100 = $10 / 100)
ORDER BY id ASC
LIMIT $4;

-- name: attempts_of_endpoint
-- $1 endpoint, $2 after id, $3 before id, $4 how many, filters as above. Index attempt_endpoint of
-- each partition, merged, then primary keys of messages if the filters are about them.
SELECT message_id, id, endpoint_id, number, trigger, started_at, url, status, retry_after, body,
    body_cut, failure, failure_phase, failure_detail, dns, connect, tls, first_byte, total, remote,
    verdict, next_attempt_at
FROM posthaste.attempt
WHERE endpoint_id = $1 AND id > $2 AND id < $3
    AND ($11 IS NULL OR endpoint_id = $11)
    AND ($5 IS NULL AND $6 IS NULL OR EXISTS (
        SELECT 1 FROM posthaste.message
        WHERE message.id = attempt.message_id
            AND ($5 IS NULL OR channels::jsonb ? $5)
            AND ($6 IS NULL OR event_type = ANY ($6))
        OFFSET 0
    ))
    AND ($7 IS NULL OR started_at < $7) AND ($8 IS NULL OR started_at >= $8)
    AND ($9 IS NULL OR $9 = (coalesce(status, 0) BETWEEN 200 AND 299))
    AND ($10 IS NULL OR status / 100 = $10 / 100)
ORDER BY id ASC
LIMIT $4;

-- name: messages_of_endpoint
-- $1 endpoint, $2 after message, $3 before message, $4 how many, filters, $9 states or NULL, $10
-- bytes of payload after which no further row is read. Primary keys: two ordered walks, over what
-- is open and over what has ended, of which the nearest are taken.
WITH found AS (
    (
        SELECT endpoint_id, message_id, application_id, state, attempts, accepted_at, due_at,
            NULL::bigint AS ended_at, NULL::text AS cause, last_status
        FROM posthaste.delivery
        WHERE endpoint_id = $1 AND message_id > $2 AND message_id < $3
            AND ($9 IS NULL OR CASE state WHEN 1 THEN 'in_flight' WHEN 2 THEN 'held'
                    ELSE CASE attempts WHEN 0 THEN 'pending' ELSE 'awaiting_retry' END END
                = ANY ($9))
            AND ($5 IS NULL AND $6 IS NULL AND $7 IS NULL AND $8 IS NULL OR EXISTS (
                SELECT 1 FROM posthaste.message
                WHERE message.id = delivery.message_id
                    AND ($5 IS NULL OR channels::jsonb ? $5)
                    AND ($6 IS NULL OR event_type = ANY ($6))
                    AND ($7 IS NULL OR created_at < $7) AND ($8 IS NULL OR created_at >= $8)
                OFFSET 0
            ))
        ORDER BY message_id ASC
        LIMIT $4
    )
    UNION ALL
    (
        SELECT endpoint_id, message_id, application_id, state, attempts, accepted_at, NULL,
            ended_at, cause, last_status
        FROM posthaste.ended
        WHERE endpoint_id = $1 AND message_id > $2 AND message_id < $3
            AND NOT EXISTS (
                SELECT 1 FROM posthaste.delivery
                WHERE delivery.endpoint_id = $1 AND delivery.message_id = ended.message_id
                OFFSET 0
            )
            AND ($9 IS NULL OR CASE state WHEN 3 THEN 'delivered' WHEN 4 THEN 'dead_letter'
                    ELSE 'cancelled' END
                = ANY ($9))
            AND ($5 IS NULL AND $6 IS NULL AND $7 IS NULL AND $8 IS NULL OR EXISTS (
                SELECT 1 FROM posthaste.message
                WHERE message.id = ended.message_id
                    AND ($5 IS NULL OR channels::jsonb ? $5)
                    AND ($6 IS NULL OR event_type = ANY ($6))
                    AND ($7 IS NULL OR created_at < $7) AND ($8 IS NULL OR created_at >= $8)
                OFFSET 0
            ))
        ORDER BY message_id ASC
        LIMIT $4
    )
    ORDER BY message_id ASC
    LIMIT $4
), page AS (
    SELECT message.*, found.endpoint_id, found.state, attempts, accepted_at, due_at, ended_at,
        cause, last_status,
        sum(octet_length(payload)) OVER (
            ORDER BY id ASC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS bytes_before
    FROM found
    CROSS JOIN LATERAL (
        SELECT application_id, id, event_id, event_type, channels, payload, created_at, expires_at
        FROM posthaste.message
        WHERE message.id = found.message_id
        LIMIT 1
    ) AS message
)
SELECT application_id, id, event_id, event_type, channels, payload, created_at, expires_at,
    endpoint_id, id, application_id, state, attempts, accepted_at, due_at, ended_at, cause,
    last_status
FROM page
WHERE coalesce(bytes_before, 0) <= $10
ORDER BY id ASC;

-- name: deliveries_of_message
-- $1 application, $2 after endpoint, $3 before endpoint, $4 how many, $5 message. Index
-- endpoint_page, then primary keys: the application's endpoints are few, and so no index over the
-- hot table is needed. What is open takes precedence.
SELECT endpoint.id, $5, endpoint.application_id, coalesce(delivery.state, ended.state),
    coalesce(delivery.attempts, ended.attempts),
    coalesce(delivery.accepted_at, ended.accepted_at), delivery.due_at,
    CASE WHEN delivery.state IS NULL THEN ended.ended_at END,
    CASE WHEN delivery.state IS NULL THEN ended.cause END,
    CASE WHEN delivery.state IS NULL THEN ended.last_status ELSE delivery.last_status END
FROM posthaste.endpoint
LEFT JOIN LATERAL (
    SELECT state, attempts, accepted_at, due_at, last_status FROM posthaste.delivery
    WHERE delivery.endpoint_id = endpoint.id AND delivery.message_id = $5
    LIMIT 1
) AS delivery ON true
LEFT JOIN LATERAL (
    SELECT state, attempts, accepted_at, ended_at, cause, last_status FROM posthaste.ended
    WHERE ended.endpoint_id = endpoint.id AND ended.message_id = $5
    LIMIT 1
) AS ended ON true
WHERE endpoint.application_id = $1 AND endpoint.id > $2 AND endpoint.id < $3
    AND (delivery.state IS NOT NULL OR ended.state IS NOT NULL)
ORDER BY endpoint.id ASC
LIMIT $4;

-- name: delivery_open
-- $1 endpoint, $2 message. Primary key.
SELECT endpoint_id, message_id, application_id, state, attempts, accepted_at, due_at,
    NULL::bigint, NULL::text, last_status
FROM posthaste.delivery WHERE endpoint_id = $1 AND message_id = $2;

-- name: delivery_ended
-- $1 endpoint, $2 message. Primary key of one partition.
SELECT endpoint_id, message_id, application_id, state, attempts, accepted_at, NULL::bigint,
    ended_at, cause, last_status
FROM posthaste.ended WHERE endpoint_id = $1 AND message_id = $2;

-- name: dead_letters_page
-- $1 applications or NULL for all, $2 after message, $3 before message, $4 given up before,
-- $5 given up since, $6 how many; all of the last message, however many endpoints gave it up.
-- Index ended_dead_page of each partition, merged. Those that are being sent again are not among
-- them.
SELECT endpoint_id, message_id, application_id, state, attempts, accepted_at, NULL::bigint,
    ended_at, cause, last_status
FROM (
    SELECT endpoint_id, message_id, application_id, state, attempts, accepted_at, ended_at, cause,
        last_status
    FROM posthaste.ended
    WHERE state = 4 AND message_id > $2 AND message_id < $3
        AND ($1 IS NULL OR application_id = ANY ($1))
        AND ($4 IS NULL OR ended_at < $4) AND ($5 IS NULL OR ended_at >= $5)
        AND NOT EXISTS (
            SELECT 1 FROM posthaste.delivery WHERE delivery.endpoint_id = ended.endpoint_id
                AND delivery.message_id = ended.message_id
            OFFSET 0
        )
    ORDER BY message_id ASC
    FETCH FIRST ($6) ROWS WITH TIES
) AS page
ORDER BY message_id ASC, endpoint_id ASC;

-- name: dead_letters_of_endpoint
-- As above, $7 endpoint. Index ended_dead of each partition, merged.
SELECT endpoint_id, message_id, application_id, state, attempts, accepted_at, NULL::bigint,
    ended_at, cause, last_status
FROM posthaste.ended
WHERE endpoint_id = $7 AND state = 4 AND message_id > $2 AND message_id < $3
    AND ($1 IS NULL OR application_id = ANY ($1))
    AND ($4 IS NULL OR ended_at < $4) AND ($5 IS NULL OR ended_at >= $5)
    AND NOT EXISTS (
        SELECT 1 FROM posthaste.delivery
        WHERE delivery.endpoint_id = $7 AND delivery.message_id = ended.message_id
        OFFSET 0
    )
ORDER BY message_id ASC
LIMIT $6;

-- name: health_lane
-- $1 endpoint. Primary key.
SELECT breaker, breaker_until, consecutive_failures, cooldown, quiet_until, ramp, failing_since,
    last_failure_at, last_success_at, warned_percent, limiter_next_at, p95_ms
FROM posthaste.lane WHERE endpoint_id = $1 AND state <> 2;

-- name: health_windows
-- $1 endpoint, $2 since. Primary key; at most 25 windows per worker.
SELECT start, sketch FROM posthaste.window_sketch
WHERE scope = 0 AND endpoint_id = $1 AND start >= $2
ORDER BY start;

-- name: health_waiting
-- $1 endpoint. Index delivery_due.
SELECT count(*) FROM posthaste.delivery WHERE endpoint_id = $1 AND state = 0;

-- name: health_held
-- $1 endpoint. Index delivery_held.
SELECT count(*) FROM posthaste.delivery WHERE endpoint_id = $1 AND state = 2;

-- name: status_open
-- Open deliveries by state and the first due time, in one walk over the (small) table of open ones.
SELECT count(*) FILTER (WHERE state = 0 AND attempts = 0),
    count(*) FILTER (WHERE state = 0 AND attempts > 0),
    count(*) FILTER (WHERE state = 1), count(*) FILTER (WHERE state = 2),
    count(*) FILTER (WHERE reopened), min(due_at) FILTER (WHERE state = 0)
FROM posthaste.delivery;

-- name: status_oldest
-- The oldest delivery that is on its way; held ones wait for a person.
SELECT endpoint_id, message_id, accepted_at FROM posthaste.delivery
WHERE state <> 2
ORDER BY accepted_at, message_id, endpoint_id
LIMIT 1;

-- name: status_dead
-- Index ended_dead_page of each partition.
SELECT count(*) FROM posthaste.ended WHERE state = 4;

-- name: status_tally
-- $1 first minute. Primary key.
SELECT coalesce(sum(delivered), 0)::bigint, coalesce(sum(failed), 0)::bigint,
    coalesce(sum(failed_attempts), 0)::bigint, coalesce(sum(timed), 0)::bigint,
    coalesce(sum(delivery_time), 0)::bigint
FROM posthaste.tally WHERE minute >= $1;

-- name: status_windows
-- $1 since. Primary key.
SELECT sketch FROM posthaste.window_sketch
WHERE scope = 1 AND endpoint_id = '00000000-0000-0000-0000-000000000000' AND start >= $1;

-- name: status_lanes
-- One walk over the lanes in use or disabled.
SELECT count(*) FILTER (WHERE state = 0 AND breaker <> 0), count(*) FILTER (WHERE state = 1)
FROM posthaste.lane;

-- name: status_workers
-- $1 alive since. There are few workers.
SELECT count(*) FROM posthaste.worker WHERE heartbeat_at >= $1;

-- name: notices_all
-- $1 how many. Primary key.
SELECT id, application_id, endpoint_id, kind, detail FROM posthaste.notice
ORDER BY id DESC LIMIT $1;

-- name: notices_of_application
-- $1 application, $2 how many. Index notice_page.
SELECT id, application_id, endpoint_id, kind, detail FROM posthaste.notice
WHERE application_id = $1
ORDER BY id DESC
LIMIT $2;
