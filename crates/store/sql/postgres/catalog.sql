-- Applications, endpoints, event types, requests with an idempotency key.
-- Lists are walked in either direction: a statement that ends in ASC is also run with DESC.
-- Who changes an application or one of its endpoints locks the application's row first, then
-- lanes by their ids; endpoints need no lock of their own.

-- name: application_insert
-- A new application with its limiter; nothing happens when the id is taken.
WITH made AS (
    INSERT INTO posthaste.application
        (id, organisation_id, uid, name, throttle_rate, metadata, routes_version, created_at,
         updated_at)
    VALUES ($1, $2, $3, $4, $5, $6, 1, $7, $8)
    ON CONFLICT (id) DO NOTHING
    RETURNING id
)
INSERT INTO posthaste.application_limiter (application_id, next_at)
SELECT id, 0 FROM made;

-- name: application_by_id
-- $1 id, $2 organisation. Primary key.
SELECT id, organisation_id, uid, name, throttle_rate, metadata, created_at, updated_at
FROM posthaste.application WHERE id = $1 AND organisation_id = $2 AND deleted_at IS NULL;

-- name: application_by_uid
-- $1 organisation, $2 uid. Index application_uid.
SELECT id, organisation_id, uid, name, throttle_rate, metadata, created_at, updated_at
FROM posthaste.application WHERE organisation_id = $1 AND uid = $2 AND deleted_at IS NULL;

-- name: application_uid_taken
-- $1 organisation, $2 uid, $3 who may have it. Index application_uid.
SELECT 1 FROM posthaste.application
WHERE organisation_id = $1 AND uid = $2 AND deleted_at IS NULL AND id <> $3;

-- name: application_version
-- $1 id. Primary key. Nobody accepts for the application or changes it until we are done.
SELECT updated_at FROM posthaste.application WHERE id = $1 AND deleted_at IS NULL FOR UPDATE;

-- name: application_update
-- $1 id. Primary key.
UPDATE posthaste.application
SET uid = $2, name = $3, throttle_rate = $4, metadata = $5, updated_at = $6,
    routes_version = routes_version + 1
WHERE id = $1;

-- name: application_delete
-- $1 id, $2 now. Primary key.
UPDATE posthaste.application
SET deleted_at = $2, updated_at = $2, routes_version = routes_version + 1
WHERE id = $1 AND deleted_at IS NULL;

-- name: application_endpoints_delete
-- $1 application, $2 now. Index endpoint_page.
UPDATE posthaste.endpoint SET deleted_at = $2, updated_at = $2
WHERE application_id = $1 AND deleted_at IS NULL;

-- name: application_lanes_delete
-- $1 application. Index endpoint_page, then primary keys. Steps cancel what waits. Lanes are
-- locked in the order in which everybody locks them.
WITH locked AS (
    SELECT endpoint_id FROM posthaste.lane
    WHERE endpoint_id IN (SELECT id FROM posthaste.endpoint WHERE application_id = $1)
        AND state <> 2
    ORDER BY endpoint_id
    FOR UPDATE
)
UPDATE posthaste.lane AS lane
SET state = 2, sweep = 2, next_due_at = NULL, endpoint_version = endpoint_version + 1
FROM locked WHERE lane.endpoint_id = locked.endpoint_id;

-- name: applications_page
-- $1 organisation, $2 after id, $3 before id, $4 how many. Index application_page.
SELECT id, organisation_id, uid, name, throttle_rate, metadata, created_at, updated_at
FROM posthaste.application
WHERE organisation_id = $1 AND id > $2 AND id < $3 AND deleted_at IS NULL
ORDER BY id ASC
LIMIT $4;

-- name: routes_application
-- $1 id. Primary key.
SELECT routes_version, id, organisation_id, uid, name, throttle_rate, metadata, created_at,
    updated_at
FROM posthaste.application WHERE id = $1 AND deleted_at IS NULL;

-- name: routes_endpoints
-- $1 application. Index endpoint_page; at most ENDPOINTS_PER_APPLICATION_MAX rows.
SELECT id, application_id, uid, url, description, disabled, event_types, channels, throttle_rate,
    version, metadata, headers, secrets, policy, created_at, updated_at
FROM posthaste.endpoint WHERE application_id = $1 AND deleted_at IS NULL
ORDER BY id;

-- name: endpoint_insert
-- A new endpoint; nothing happens when the id is taken.
INSERT INTO posthaste.endpoint
    (id, uid, url, description, disabled, event_types, channels, throttle_rate, version, metadata,
     headers, secrets, policy, updated_at, application_id, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
ON CONFLICT (id) DO NOTHING;

-- name: lane_insert
-- $1 endpoint, $2 application, $3 state. A new lane is healthy.
INSERT INTO posthaste.lane
    (endpoint_id, application_id, state, sweep, endpoint_version, breaker, breaker_until,
     consecutive_failures, cooldown, warned_percent, limiter_next_at, p95_ms)
VALUES ($1, $2, $3, 0, 1, 0, 0, 0, 0, 0, 0, 0);

-- name: endpoint_count
-- $1 application. Index endpoint_page.
SELECT count(*) FROM posthaste.endpoint WHERE application_id = $1 AND deleted_at IS NULL;

-- name: endpoint_by_id
-- $1 id, $2 application. Primary key.
SELECT id, application_id, uid, url, description, disabled, event_types, channels, throttle_rate,
    version, metadata, headers, secrets, policy, created_at, updated_at
FROM posthaste.endpoint WHERE id = $1 AND application_id = $2 AND deleted_at IS NULL;

-- name: endpoint_by_uid
-- $1 application, $2 uid. Index endpoint_uid.
SELECT id, application_id, uid, url, description, disabled, event_types, channels, throttle_rate,
    version, metadata, headers, secrets, policy, created_at, updated_at
FROM posthaste.endpoint WHERE application_id = $1 AND uid = $2 AND deleted_at IS NULL;

-- name: endpoint_uid_taken
-- $1 application, $2 uid, $3 who may have it. Index endpoint_uid.
SELECT 1 FROM posthaste.endpoint
WHERE application_id = $1 AND uid = $2 AND deleted_at IS NULL AND id <> $3;

-- name: endpoint_application_lock
-- $1 endpoint. Primary keys. Nobody accepts for the endpoint's application or changes it until we
-- are done.
-- only here: other processes write at the same time.
SELECT id FROM posthaste.application
WHERE id = (SELECT application_id FROM posthaste.endpoint WHERE endpoint.id = $1)
FOR UPDATE;

-- name: endpoint_version
-- $1 id. Primary key.
SELECT updated_at, disabled IS NOT NULL, application_id
FROM posthaste.endpoint WHERE id = $1 AND deleted_at IS NULL;

-- name: endpoint_update
-- $1 id. Primary key.
UPDATE posthaste.endpoint
SET uid = $2, url = $3, description = $4, disabled = $5, event_types = $6, channels = $7,
    throttle_rate = $8, version = $9, metadata = $10, headers = $11, secrets = $12, policy = $13,
    updated_at = $14
WHERE id = $1;

-- name: lane_sweeping
-- $1 endpoint. Primary key. Whether a step has still to hold what waits.
-- only here: the lane is locked before anything of it is changed.
SELECT sweep <> 0 FROM posthaste.lane WHERE endpoint_id = $1 FOR UPDATE;

-- name: lane_touch
-- $1 endpoint. Primary key. Copies of the endpoint are old.
UPDATE posthaste.lane SET endpoint_version = endpoint_version + 1 WHERE endpoint_id = $1;

-- name: lane_open
-- $1 endpoint. Primary key. In use again, as healthy as a new one; its rate limit goes on.
UPDATE posthaste.lane
SET state = 0, sweep = 0, endpoint_version = endpoint_version + 1, breaker = 0, breaker_until = 0,
    consecutive_failures = 0, cooldown = 0, quiet_until = NULL, ramp = NULL, failing_since = NULL,
    last_failure_at = NULL, last_success_at = NULL, warned_percent = 0, p95_ms = 0
WHERE endpoint_id = $1;

-- name: endpoint_delete
-- $1 id, $2 now. Primary key.
UPDATE posthaste.endpoint SET deleted_at = $2, updated_at = $2 WHERE id = $1;

-- name: endpoints_page
-- $1 application, $2 after id, $3 before id, $4 how many. Index endpoint_page.
SELECT id, application_id, uid, url, description, disabled, event_types, channels, throttle_rate,
    version, metadata, headers, secrets, policy, created_at, updated_at
FROM posthaste.endpoint
WHERE application_id = $1 AND id > $2 AND id < $3 AND deleted_at IS NULL
ORDER BY id ASC
LIMIT $4;

-- name: event_type_insert
-- Brings an archived one of the name back. A live one is left alone: nothing changes.
INSERT INTO posthaste.event_type
    (organisation_id, name, description, archived, deprecated, schemas, feature_flag, group_name,
     created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (organisation_id, name) DO UPDATE SET
    description = excluded.description, archived = excluded.archived,
    deprecated = excluded.deprecated, schemas = excluded.schemas,
    feature_flag = excluded.feature_flag, group_name = excluded.group_name,
    created_at = excluded.created_at, updated_at = excluded.updated_at
WHERE event_type.archived;

-- name: event_type_find
-- $1 organisation, $2 name. Primary key.
SELECT organisation_id, name, description, archived, deprecated, schemas, feature_flag, group_name,
    created_at, updated_at
FROM posthaste.event_type WHERE organisation_id = $1 AND name = $2;

-- name: event_type_update
-- $1 organisation, $2 name. Primary key.
UPDATE posthaste.event_type
SET description = $3, archived = $4, deprecated = $5, schemas = $6, feature_flag = $7,
    group_name = $8, created_at = $9, updated_at = $10
WHERE organisation_id = $1 AND name = $2;

-- name: event_type_delete
-- $1 organisation, $2 name. Primary key.
DELETE FROM posthaste.event_type WHERE organisation_id = $1 AND name = $2;

-- name: event_types_page
-- $1 organisation, $2 after name, $3 before name, $4 how many, $5 archived too, $6 flags or NULL
-- for all. Primary key.
SELECT organisation_id, name, description, archived, deprecated, schemas, feature_flag, group_name,
    created_at, updated_at
FROM posthaste.event_type
WHERE organisation_id = $1 AND name > $2 AND name < $3
    AND ($5 OR NOT archived)
    AND ($6 IS NULL OR feature_flag IS NULL OR feature_flag = ANY ($6))
ORDER BY name ASC
LIMIT $4;

-- name: request_insert
-- $1 key, $2 request, $3 when it may be taken over, $4 expiry. Nothing happens when the key is
-- there; one that is being written by somebody else is waited for.
-- only here: two processes may begin the same request at once.
INSERT INTO posthaste.idempotency (key_hash, request_hash, state, takeover_at, expires_at)
VALUES ($1, $2, 0, $3, $4)
ON CONFLICT (key_hash) DO NOTHING;

-- name: request_find
-- $1 key. Primary key. Locks it.
-- only here: two processes may take over the same request at once.
SELECT request_hash, state, message_id, status, body, takeover_at, expires_at
FROM posthaste.idempotency WHERE key_hash = $1 FOR UPDATE;

-- name: request_begin
-- $1 key, $2 request, $3 when it may be taken over, $4 expiry. Overwrites what had expired or was
-- abandoned.
INSERT INTO posthaste.idempotency (key_hash, request_hash, state, takeover_at, expires_at)
VALUES ($1, $2, 0, $3, $4)
ON CONFLICT (key_hash) DO UPDATE SET
    request_hash = excluded.request_hash, state = 0, message_id = NULL, status = NULL, body = NULL,
    takeover_at = excluded.takeover_at, expires_at = excluded.expires_at;

-- name: request_finish
-- $1 key, $2 request, $3 status, $4 body, $5 expiry.
INSERT INTO posthaste.idempotency (key_hash, request_hash, state, status, body, expires_at)
VALUES ($1, $2, 1, $3, $4, $5)
ON CONFLICT (key_hash) DO UPDATE SET
    state = 1, status = excluded.status, body = excluded.body, takeover_at = NULL,
    expires_at = excluded.expires_at
WHERE idempotency.request_hash = excluded.request_hash;

-- name: request_drop
-- $1 key, $2 request. Primary key. Only one that was not finished.
DELETE FROM posthaste.idempotency WHERE key_hash = $1 AND request_hash = $2 AND state = 0;
