-- only here: an application's own transaction reaches no SQLite file of ours.
-- Messages that applications enqueue in transactions of their own. A worker accepts each soon after
-- its commit, as if it had come over the API, and deletes its row in the same transaction.

CREATE TABLE posthaste.enqueued (
    -- Ordered by when it was enqueued, to the microsecond.
    message_id uuid NOT NULL PRIMARY KEY,
    application_id uuid NOT NULL,
    event_id text COLLATE "C",
    event_type text COLLATE "C" NOT NULL,
    -- A JSON list, as a message keeps it.
    channels text,
    payload bytea NOT NULL,
    -- Why it cannot be accepted. It stays for people to see.
    refused text
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);

ALTER TABLE posthaste.enqueued ALTER COLUMN payload SET STORAGE EXTERNAL;
CREATE INDEX enqueued_next ON posthaste.enqueued (message_id) WHERE refused IS NULL;
CREATE INDEX enqueued_refused ON posthaste.enqueued (message_id) WHERE refused IS NOT NULL;
CREATE UNIQUE INDEX enqueued_event_id ON posthaste.enqueued (application_id, event_id)
    WHERE event_id IS NOT NULL AND refused IS NULL;

-- Uids are unique within an organisation only; those who enqueue need not know theirs.
CREATE INDEX application_uid_any ON posthaste.application (uid)
    WHERE uid IS NOT NULL AND deleted_at IS NULL;

-- An id as people see it: 22 base62 digits (the prefix is the caller's).
CREATE FUNCTION posthaste.id_text(id uuid) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    digits CONSTANT text := '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
    bytes CONSTANT bytea := uuid_send(id);
    rest numeric := 0;
    written text := '';
BEGIN
    FOR i IN 0..15 LOOP
        rest := rest * 256 + get_byte(bytes, i);
    END LOOP;
    FOR i IN 1..22 LOOP
        written := substr(digits, (rest % 62)::int + 1, 1) || written;
        rest := div(rest, 62);
    END LOOP;
    RETURN written;
END;
$$;

-- The other way round; NULL: those are not the digits of an id.
CREATE FUNCTION posthaste.id_of_text(digits text) RETURNS uuid
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    all_digits CONSTANT text := '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
    rest numeric := 0;
    bytes bytea := decode(repeat('00', 16), 'hex');
BEGIN
    IF digits COLLATE "C" !~ '^[0-9A-Za-z]{22}$' THEN
        RETURN NULL;
    END IF;
    FOR i IN 1..22 LOOP
        rest := rest * 62 + (strpos(all_digits, substr(digits, i, 1)) - 1);
    END LOOP;
    FOR i IN REVERSE 15..0 LOOP
        bytes := set_byte(bytes, i, (rest % 256)::int);
        rest := div(rest, 256);
    END LOOP;
    IF rest > 0 THEN
        RETURN NULL;
    END IF;
    RETURN encode(bytes, 'hex')::uuid;
END;
$$;

-- A message's id for this microsecond (UUID version 7, RFC 9562 section 5.7, with method 3 of its
-- section 6.2), so that what one transaction enqueues keeps its order.
CREATE FUNCTION posthaste.new_message_id() RETURNS uuid
LANGUAGE plpgsql VOLATILE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- own clock: nobody of ours calls this, and an id begins with its time.
    micros CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    -- The part of a millisecond in 4,096ths.
    part CONSTANT int := (micros % 1000 * 4096 / 1000)::int;
    id bytea := uuid_send(gen_random_uuid());
BEGIN
    id := overlay(id PLACING substring(int8send(micros / 1000) FROM 3) FROM 1 FOR 6);
    id := set_byte(set_byte(id, 6, 112 + part / 256), 7, part % 256);
    RETURN encode(id, 'hex')::uuid;
END;
$$;

-- What is wrong with a name, if anything: the rules of the API.
CREATE FUNCTION posthaste.name_problem(name text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE
        WHEN name IS NULL THEN 'must not be NULL'
        WHEN octet_length(name) NOT BETWEEN 1 AND 256 THEN 'must have 1 to 256 characters'
        WHEN name COLLATE "C" !~ '^[A-Za-z0-9._-]+$'
            THEN 'may only hold letters, digits, `-`, `_` and `.`'
        WHEN name IN ('.', '..') THEN 'must not be `.` or `..`'
    END
$$;

-- The application that somebody means by an id or a uid.
CREATE FUNCTION posthaste.application_named(wanted text, organisation text) RETURNS uuid
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found uuid[];
BEGIN
    IF wanted IS NULL THEN
        RAISE EXCEPTION 'posthaste: application must not be NULL'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF starts_with(wanted, 'app_') THEN
        SELECT array_agg(id) INTO found FROM posthaste.application
        WHERE id = posthaste.id_of_text(substr(wanted, 5)) AND deleted_at IS NULL
            AND (organisation IS NULL OR organisation_id = organisation);
    ELSE
        SELECT array_agg(id) INTO found FROM posthaste.application
        WHERE uid = wanted AND deleted_at IS NULL
            AND (organisation IS NULL OR organisation_id = organisation);
    END IF;
    IF found IS NULL THEN
        RAISE EXCEPTION 'posthaste: there is no application "%"', left(wanted, 256)
            USING ERRCODE = 'no_data_found';
    END IF;
    IF cardinality(found) > 1 THEN
        RAISE EXCEPTION 'posthaste: % organisations have an application "%"',
            cardinality(found), left(wanted, 256)
            USING ERRCODE = 'ambiguous_alias', HINT = 'Pass organisation => ''org_...'' as well.';
    END IF;
    RETURN found[1];
END;
$$;

-- Wakes the workers when this transaction commits. Of all transactions, one in 50 ms does so, and
-- none twice: commits that notify wait for each other. Whoever hears it looks again a moment later,
-- for those who kept quiet.
CREATE FUNCTION posthaste.notify_enqueued() RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- own clock: nobody of ours calls this.
    bucket CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 20)::bigint;
BEGIN
    -- Forgotten at the end of the transaction, and when a savepoint takes the NOTIFY back.
    IF coalesce(current_setting('posthaste.notified', true), '') = '' THEN
        IF pg_try_advisory_xact_lock(1885893492, (bucket % 2147483647)::int) THEN
            PERFORM pg_notify('posthaste_enqueued', '');
            PERFORM set_config('posthaste.notified', '1', true);
        END IF;
    END IF;
END;
$$;

-- Enqueues a message in the caller's transaction: it is accepted if and only if that commits.
-- Gives the message's id. Whatever the API would refuse is an error here.
--
-- Runs with the rights of its owner, so that an application needs none of its own but to call it.
CREATE FUNCTION posthaste.enqueue(
    application text,
    event_type text,
    payload bytea,
    event_id text DEFAULT NULL,
    channels text[] DEFAULT NULL,
    organisation text DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    message CONSTANT uuid := posthaste.new_message_id();
    owner CONSTANT uuid := posthaste.application_named(application, organisation);
    -- As the API takes it: without the white space around the object, and byte for byte otherwise.
    object CONSTANT bytea := btrim(payload, '\x20090a0d');
    is_object boolean;
    problem text;
BEGIN
    problem := posthaste.name_problem(event_type);
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'posthaste: event_type %', problem
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF event_id IS NOT NULL THEN
        problem := posthaste.name_problem(event_id);
        IF problem IS NULL AND starts_with(event_id, 'msg_') THEN
            problem := 'must not start with `msg_`, which is reserved for ids';
        END IF;
        IF problem IS NOT NULL THEN
            RAISE EXCEPTION 'posthaste: event_id %', problem
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    IF channels IS NOT NULL THEN
        IF array_ndims(channels) IS DISTINCT FROM 1 OR cardinality(channels) > 5 THEN
            RAISE EXCEPTION 'posthaste: channels must be NULL or 1 to 5 channels'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        SELECT posthaste.name_problem(channel) INTO problem FROM unnest(channels) AS channel
        WHERE posthaste.name_problem(channel) IS NOT NULL LIMIT 1;
        IF problem IS NOT NULL THEN
            RAISE EXCEPTION 'posthaste: a channel %', problem
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    IF payload IS NULL THEN
        RAISE EXCEPTION 'posthaste: payload must not be NULL'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF octet_length(object) > 5242880 THEN
        RAISE EXCEPTION 'posthaste: the payload has % bytes, at most 5242880 are allowed',
            octet_length(object) USING ERRCODE = 'program_limit_exceeded';
    END IF;
    BEGIN
        is_object := json_typeof(convert_from(object, 'UTF8')::json) = 'object';
    EXCEPTION
        WHEN data_exception THEN
            -- Not the error itself: it shows a part of the payload.
            is_object := false;
        WHEN statement_too_complex THEN
            RAISE EXCEPTION 'posthaste: the payload is nested too deeply for PostgreSQL to check it'
                USING ERRCODE = 'program_limit_exceeded';
    END;
    IF NOT is_object THEN
        RAISE EXCEPTION 'posthaste: the payload must be a JSON object in UTF-8'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO posthaste.enqueued
        (message_id, application_id, event_id, event_type, channels, payload)
    VALUES (
        message, owner, event_id, event_type, array_to_json(channels)::text, object
    )
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'posthaste: the application has a message with event_id "%"', event_id
            USING ERRCODE = 'unique_violation';
    END IF;
    -- After the insert: between the two, a worker may take an enqueued one in.
    IF event_id IS NOT NULL AND EXISTS (
        SELECT FROM posthaste.event AS taken
        WHERE taken.application_id = owner AND taken.event_id = enqueue.event_id
    ) THEN
        RAISE EXCEPTION 'posthaste: the application has a message with event_id "%"', event_id
            USING ERRCODE = 'unique_violation';
    END IF;
    PERFORM posthaste.notify_enqueued();
    RETURN 'msg_' || posthaste.id_text(message);
END;
$$;

-- The same with the payload as text.
CREATE FUNCTION posthaste.enqueue(
    application text,
    event_type text,
    payload text,
    event_id text DEFAULT NULL,
    channels text[] DEFAULT NULL,
    organisation text DEFAULT NULL
) RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT posthaste.enqueue(
        application, event_type, convert_to(payload, 'UTF8'), event_id, channels, organisation)
$$;

-- Whoever may enqueue is the owner's to say.
REVOKE ALL ON FUNCTION
    posthaste.id_text(uuid), posthaste.id_of_text(text), posthaste.new_message_id(),
    posthaste.name_problem(text), posthaste.application_named(text, text),
    posthaste.notify_enqueued(),
    posthaste.enqueue(text, text, bytea, text, text[], text),
    posthaste.enqueue(text, text, text, text, text[], text)
FROM PUBLIC;
