-- Creates duetime.submit, by which an application submits a task in SQL, and the functions that it calls.
-- Locks: none that another session waits for; functions only.

-- The one shard where a task with these attributes must live; NULL: any will do. It follows `bound_to` in
-- common/src/shard/route.rs: the first 8 bytes of SHA-256 modulo the number of shards. The function computes it in
-- two halves, because a bigint has a sign.
CREATE FUNCTION duetime.shard_of(p_queue text, p_single boolean, p_partition_key text, p_key text, p_shard_count integer)
RETURNS integer LANGUAGE sql STABLE SET search_path = pg_catalog AS $$
    SELECT (((('x' || encode(substring(h.hash FROM 1 FOR 4), 'hex'))::bit(32)::bigint % p_shard_count) * (4294967296 % p_shard_count)
             + ('x' || encode(substring(h.hash FROM 5 FOR 4), 'hex'))::bit(32)::bigint) % p_shard_count)::integer
      FROM (SELECT sha256(CASE
                WHEN p_single THEN convert_to(p_queue, 'UTF8')
                WHEN p_partition_key IS NOT NULL THEN convert_to(p_partition_key, 'UTF8')
                WHEN p_key IS NOT NULL THEN convert_to(p_queue, 'UTF8') || '\x00'::bytea || convert_to(p_key, 'UTF8')
            END) AS hash) AS h
$$;

-- A UUIDv7 with the shard in its last 16 bits, which is the format of common/src/ids.rs.
CREATE FUNCTION duetime.mint(p_at timestamptz, p_shard integer)
RETURNS uuid LANGUAGE sql VOLATILE SET search_path = pg_catalog AS $$
    SELECT encode(set_byte(set_byte(set_byte(
               overlay(r.bytes PLACING substring(int8send(floor(extract(epoch FROM p_at) * 1000)::bigint) FROM 3) FROM 1 FOR 6),
               6, get_byte(r.bytes, 6) & 15 | 112), 14, p_shard >> 8), 15, p_shard & 255), 'hex')::uuid
      FROM (SELECT uuid_send(gen_random_uuid()) AS bytes) AS r
$$;

-- Raises an exception about the first invalid field of a submission, as far as that is cheap to find here. The node
-- that collects the row checks everything.
CREATE FUNCTION duetime.submit_check(p_queue text, p_payload jsonb, p_due_at timestamptz, p_key text, p_options jsonb)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    v_field text;
    v_value jsonb;
    v_must text;
BEGIN
    IF p_queue IS NULL OR p_queue !~ '^[A-Za-z0-9._-]{1,128}$' THEN
        v_field := 'queue';
        v_must := '1 to 128 of A-Z a-z 0-9 . _ -';
    ELSIF p_due_at IS NULL OR p_due_at >= '9999-12-31 23:59:59+00' THEN
        v_field := 'due_at';
        v_must := 'a time before the end of the year 9999';
    -- No configuration allows a longer payload.
    ELSIF octet_length(p_payload::text) > 1048576 THEN
        v_field := 'payload';
        v_must := '1 MiB at most';
    ELSIF length(p_key) NOT BETWEEN 1 AND 256 THEN
        v_field := 'key';
        v_must := '1 to 256 characters';
    ELSIF jsonb_typeof(p_options) IS DISTINCT FROM 'object' THEN
        v_field := 'options';
        v_must := 'a JSON object';
    -- A payload of 1 MiB in base64 and all other options at their longest fit in.
    ELSIF octet_length(p_options::text) > 2097152 THEN
        v_field := 'options';
        v_must := '2 MiB at most';
    END IF;
    IF v_field IS NOT NULL THEN
        RAISE EXCEPTION '`%` must be %', v_field, v_must USING ERRCODE = 'invalid_parameter_value', COLUMN = v_field;
    END IF;
    FOR v_field, v_value IN SELECT o.key, o.value FROM jsonb_each(p_options) AS o LOOP
        v_must := CASE
            WHEN v_field IN ('queue', 'payload', 'due_at', 'key') THEN 'an argument of its own, not an option'
            WHEN v_field = 'delay_ms' THEN 'said as due_at => clock_timestamp() + interval'
            WHEN v_field NOT IN ('partition_key', 'priority', 'version', 'on_duplicate', 'headers', 'max_attempts', 'timeout_ms', 'retry',
                                 'expires_at', 'expires_after_ms', 'payload_base64', 'content_type', 'depends_on')
                THEN 'left out: there is no such option'
            WHEN v_value = 'null' THEN NULL
            WHEN v_field = 'expires_at' THEN CASE WHEN jsonb_typeof(v_value) NOT IN ('string', 'number')
                THEN 'a time in RFC 3339 or in Unix milliseconds' END
            WHEN v_field = 'depends_on' THEN CASE
                WHEN jsonb_typeof(v_value) <> 'array' THEN 'a JSON array'
                WHEN jsonb_array_length(v_value) > 100 THEN '100 tasks at most'
                WHEN octet_length(v_value::text) > 262144 THEN '256 KiB at most' END
            WHEN v_field = 'headers' THEN CASE
                WHEN jsonb_typeof(v_value) <> 'object' THEN 'a JSON object'
                WHEN octet_length(v_value::text) > 65536 THEN '8 KiB at most, names and values together'
                ELSE (SELECT CASE WHEN count(*) > 64 THEN '64 headers at most'
                                  WHEN bool_or(jsonb_typeof(h.value) <> 'string') THEN 'a map of strings'
                                  WHEN sum(octet_length(h.key) + octet_length(h.value #>> '{}')) > 8192
                                  THEN '8 KiB at most, names and values together' END
                        FROM jsonb_each(v_value) AS h) END
            WHEN v_field = 'retry' THEN CASE
                WHEN jsonb_typeof(v_value) <> 'object' THEN 'a JSON object'
                WHEN octet_length(v_value::text) > 1024 THEN '1 KiB at most' END
            WHEN v_field IN ('priority', 'version', 'max_attempts', 'timeout_ms', 'expires_after_ms')
                THEN CASE WHEN v_value::text !~ '^-?[0-9]{1,18}$' THEN 'a whole number'
                          WHEN v_field = 'priority' AND v_value::text NOT IN ('1', '2', '3', '4', '5') THEN '1 to 5' END
            WHEN jsonb_typeof(v_value) <> 'string' THEN 'text'
            WHEN v_field = 'on_duplicate' AND v_value #>> '{}' NOT IN ('keep', 'reject', 'replace', 'version')
                THEN 'keep, reject, replace or version'
            WHEN v_field = 'payload_base64' AND octet_length(v_value #>> '{}') > 1398104 THEN '1 MiB at most when it is decoded'
            WHEN v_field = 'content_type' AND octet_length(v_value #>> '{}') > 255 THEN '255 bytes at most'
            WHEN v_field = 'partition_key' AND length(v_value #>> '{}') NOT BETWEEN 1 AND 256 THEN '1 to 256 characters'
        END;
        IF v_must IS NOT NULL THEN
            RAISE EXCEPTION 'option `%` must be %', v_field, v_must USING ERRCODE = 'invalid_parameter_value', COLUMN = v_field;
        END IF;
    END LOOP;
END
$$;

-- Submits a task in the transaction of the caller: the task exists when that commits, and never existed when it does
-- not. Returns the task's id.
--
-- The notification is the same for all submissions, so one transaction sends one however much it submits. PostgreSQL
-- lets only one transaction with a notification commit at a time.
CREATE FUNCTION duetime.submit(
    queue text, payload jsonb, due_at timestamptz DEFAULT now(), key text DEFAULT NULL, options jsonb DEFAULT '{}')
RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    v_meta duetime.meta;
    v_shard integer;
    v_id uuid;
    v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM duetime.submit_check(submit.queue, submit.payload, submit.due_at, submit.key, submit.options);
    SELECT m.* INTO STRICT v_meta FROM duetime.meta AS m;
    v_shard := coalesce(
        duetime.shard_of(
            submit.queue,
            EXISTS (SELECT FROM duetime.queue AS q WHERE q.name = submit.queue AND q.policy ->> 'placement' = 'single'),
            submit.options ->> 'partition_key', submit.key, v_meta.shard_count),
        v_meta.first_shard + floor(random() * (v_meta.last_shard - v_meta.first_shard + 1))::integer);
    v_id := duetime.mint(v_now, v_shard);
    INSERT INTO duetime.inbox (id, shard, request, submitted_at)
    VALUES (v_id, v_shard, submit.options || jsonb_build_object(
                'queue', submit.queue, 'payload', submit.payload, 'key', submit.key,
                -- A due time in the past means now.
                'due_at', to_char(greatest(submit.due_at, v_now) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')), v_now);
    PERFORM pg_notify('duetime_inbox', '');
    RETURN v_id;
END
$$;

-- `duetime migrate` grants it to duetime_producer.
REVOKE ALL ON FUNCTION duetime.submit FROM PUBLIC;
