-- Applications, endpoints, event types, requests with an idempotency key.
-- Lists are walked in either direction: a statement that ends in ASC is also run with DESC.

-- name: application_insert
-- A new application; nothing happens when the id is taken.
INSERT INTO application
    (id, organisation_id, uid, name, throttle_rate, metadata, routes_version, limiter_next_at,
     created_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1, 0, ?7, ?8)
ON CONFLICT (id) DO NOTHING;

-- name: application_by_id
-- ?1 id, ?2 organisation. Primary key.
SELECT id, organisation_id, uid, name, throttle_rate, metadata, created_at, updated_at
FROM application WHERE id = ?1 AND organisation_id = ?2 AND deleted_at IS NULL;

-- name: application_by_uid
-- ?1 organisation, ?2 uid. Index application_uid.
SELECT id, organisation_id, uid, name, throttle_rate, metadata, created_at, updated_at
FROM application WHERE organisation_id = ?1 AND uid = ?2 AND deleted_at IS NULL;

-- name: application_uid_taken
-- ?1 organisation, ?2 uid, ?3 who may have it. Index application_uid.
SELECT 1 FROM application
WHERE organisation_id = ?1 AND uid = ?2 AND deleted_at IS NULL AND id <> ?3;

-- name: application_version
-- ?1 id. Primary key.
SELECT updated_at FROM application WHERE id = ?1 AND deleted_at IS NULL;

-- name: application_update
-- ?1 id. Primary key.
UPDATE application
SET uid = ?2, name = ?3, throttle_rate = ?4, metadata = ?5, updated_at = ?6,
    routes_version = routes_version + 1
WHERE id = ?1;

-- name: application_delete
-- ?1 id, ?2 now. Primary key.
UPDATE application
SET deleted_at = ?2, updated_at = ?2, routes_version = routes_version + 1
WHERE id = ?1 AND deleted_at IS NULL;

-- name: application_endpoints_delete
-- ?1 application, ?2 now. Index endpoint_page.
UPDATE endpoint SET deleted_at = ?2, updated_at = ?2
WHERE application_id = ?1 AND deleted_at IS NULL;

-- name: application_lanes_delete
-- ?1 application. Index endpoint_page, then primary keys. Steps cancel what waits.
UPDATE lane SET state = 2, sweep = 2, next_due_at = NULL, endpoint_version = endpoint_version + 1
WHERE endpoint_id IN (SELECT id FROM endpoint WHERE application_id = ?1) AND state <> 2;

-- name: applications_page
-- ?1 organisation, ?2 after id, ?3 before id, ?4 how many. Index application_page.
SELECT id, organisation_id, uid, name, throttle_rate, metadata, created_at, updated_at
FROM application
WHERE organisation_id = ?1 AND id > ?2 AND id < ?3 AND deleted_at IS NULL
ORDER BY id ASC
LIMIT ?4;

-- name: routes_application
-- ?1 id. Primary key.
SELECT routes_version, id, organisation_id, uid, name, throttle_rate, metadata, created_at,
    updated_at
FROM application WHERE id = ?1 AND deleted_at IS NULL;

-- name: routes_endpoints
-- ?1 application. Index endpoint_page; at most ENDPOINTS_PER_APPLICATION_MAX rows.
SELECT id, application_id, uid, url, description, disabled, event_types, channels, throttle_rate,
    version, metadata, headers, secrets, policy, created_at, updated_at
FROM endpoint WHERE application_id = ?1 AND deleted_at IS NULL
ORDER BY id;

-- name: endpoint_insert
-- A new endpoint; nothing happens when the id is taken.
INSERT INTO endpoint
    (id, application_id, uid, url, description, disabled, event_types, channels, throttle_rate,
     version, metadata, headers, secrets, policy, created_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
ON CONFLICT (id) DO NOTHING;

-- name: lane_insert
-- ?1 endpoint, ?2 application, ?3 state. A new lane is healthy.
INSERT INTO lane
    (endpoint_id, application_id, state, sweep, endpoint_version, breaker, breaker_until,
     consecutive_failures, cooldown, warned_percent, limiter_next_at, p95_ms)
VALUES (?1, ?2, ?3, 0, 1, 0, 0, 0, 0, 0, 0, 0);

-- name: endpoint_count
-- ?1 application. Index endpoint_page.
SELECT count(*) FROM endpoint WHERE application_id = ?1 AND deleted_at IS NULL;

-- name: endpoint_by_id
-- ?1 id, ?2 application. Primary key.
SELECT id, application_id, uid, url, description, disabled, event_types, channels, throttle_rate,
    version, metadata, headers, secrets, policy, created_at, updated_at
FROM endpoint WHERE id = ?1 AND application_id = ?2 AND deleted_at IS NULL;

-- name: endpoint_by_uid
-- ?1 application, ?2 uid. Index endpoint_uid.
SELECT id, application_id, uid, url, description, disabled, event_types, channels, throttle_rate,
    version, metadata, headers, secrets, policy, created_at, updated_at
FROM endpoint WHERE application_id = ?1 AND uid = ?2 AND deleted_at IS NULL;

-- name: endpoint_uid_taken
-- ?1 application, ?2 uid, ?3 who may have it. Index endpoint_uid.
SELECT 1 FROM endpoint
WHERE application_id = ?1 AND uid = ?2 AND deleted_at IS NULL AND id <> ?3;

-- name: endpoint_version
-- ?1 id. Primary key.
SELECT updated_at, disabled IS NOT NULL, application_id
FROM endpoint WHERE id = ?1 AND deleted_at IS NULL;

-- name: endpoint_update
-- ?1 id. Primary key.
UPDATE endpoint
SET uid = ?2, url = ?3, description = ?4, disabled = ?5, event_types = ?6, channels = ?7,
    throttle_rate = ?8, version = ?9, metadata = ?10, headers = ?11, secrets = ?12, policy = ?13,
    updated_at = ?14
WHERE id = ?1;

-- name: lane_touch
-- ?1 endpoint. Primary key. Copies of the endpoint are old.
UPDATE lane SET endpoint_version = endpoint_version + 1 WHERE endpoint_id = ?1;

-- name: lane_open
-- ?1 endpoint. Primary key. In use again, as healthy as a new one; its rate limit goes on.
UPDATE lane
SET state = 0, sweep = 0, endpoint_version = endpoint_version + 1, breaker = 0, breaker_until = 0,
    consecutive_failures = 0, cooldown = 0, quiet_until = NULL, ramp = NULL, failing_since = NULL,
    last_failure_at = NULL, last_success_at = NULL, warned_percent = 0, p95_ms = 0
WHERE endpoint_id = ?1;

-- name: endpoint_delete
-- ?1 id, ?2 now. Primary key.
UPDATE endpoint SET deleted_at = ?2, updated_at = ?2 WHERE id = ?1;

-- name: endpoints_page
-- ?1 application, ?2 after id, ?3 before id, ?4 how many. Index endpoint_page.
SELECT id, application_id, uid, url, description, disabled, event_types, channels, throttle_rate,
    version, metadata, headers, secrets, policy, created_at, updated_at
FROM endpoint
WHERE application_id = ?1 AND id > ?2 AND id < ?3 AND deleted_at IS NULL
ORDER BY id ASC
LIMIT ?4;

-- name: event_type_insert
-- Brings an archived one of the name back. A live one is left alone: nothing changes.
INSERT INTO event_type
    (organisation_id, name, description, archived, deprecated, schemas, feature_flag, group_name,
     created_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
ON CONFLICT (organisation_id, name) DO UPDATE SET
    description = excluded.description, archived = excluded.archived,
    deprecated = excluded.deprecated, schemas = excluded.schemas,
    feature_flag = excluded.feature_flag, group_name = excluded.group_name,
    created_at = excluded.created_at, updated_at = excluded.updated_at
WHERE event_type.archived = 1;

-- name: event_type_find
-- ?1 organisation, ?2 name. Primary key.
SELECT organisation_id, name, description, archived, deprecated, schemas, feature_flag, group_name,
    created_at, updated_at
FROM event_type WHERE organisation_id = ?1 AND name = ?2;

-- name: event_type_update
-- ?1 organisation, ?2 name. Primary key.
UPDATE event_type
SET description = ?3, archived = ?4, deprecated = ?5, schemas = ?6, feature_flag = ?7,
    group_name = ?8, created_at = ?9, updated_at = ?10
WHERE organisation_id = ?1 AND name = ?2;

-- name: event_type_delete
-- ?1 organisation, ?2 name. Primary key.
DELETE FROM event_type WHERE organisation_id = ?1 AND name = ?2;

-- name: event_types_page
-- ?1 organisation, ?2 after name, ?3 before name, ?4 how many, ?5 archived too, ?6 flags as JSON
-- or NULL for all. Primary key.
SELECT organisation_id, name, description, archived, deprecated, schemas, feature_flag, group_name,
    created_at, updated_at
FROM event_type
WHERE organisation_id = ?1 AND name > ?2 AND name < ?3
    AND (?5 OR archived = 0)
    AND (?6 IS NULL OR feature_flag IS NULL
        OR feature_flag IN (SELECT value FROM json_each(?6)))
ORDER BY name ASC
LIMIT ?4;

-- name: request_begin
-- ?1 key, ?2 request, ?3 when it may be taken over, ?4 expiry. Overwrites what had expired or was
-- abandoned.
INSERT INTO idempotency (key_hash, request_hash, state, takeover_at, expires_at)
VALUES (?1, ?2, 0, ?3, ?4)
ON CONFLICT (key_hash) DO UPDATE SET
    request_hash = excluded.request_hash, state = 0, message_id = NULL, status = NULL, body = NULL,
    takeover_at = excluded.takeover_at, expires_at = excluded.expires_at;

-- name: request_finish
-- ?1 key, ?2 request, ?3 status, ?4 body, ?5 expiry.
INSERT INTO idempotency (key_hash, request_hash, state, status, body, expires_at)
VALUES (?1, ?2, 1, ?3, ?4, ?5)
ON CONFLICT (key_hash) DO UPDATE SET
    state = 1, status = excluded.status, body = excluded.body, takeover_at = NULL,
    expires_at = excluded.expires_at
WHERE idempotency.request_hash = excluded.request_hash;

-- name: request_drop
-- ?1 key, ?2 request. Primary key. Only one that was not finished.
DELETE FROM idempotency WHERE key_hash = ?1 AND request_hash = ?2 AND state = 0;
