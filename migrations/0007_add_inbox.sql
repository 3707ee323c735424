-- Locks: none that another session waits for; everything here is new.

-- Requests that applications submit inside their own transactions, until a node makes a task of each. That takes a
-- moment, unless the task belongs in another database that is unreachable. A request that cannot be a task stays,
-- with the reason.
CREATE TABLE duetime.inbox (
    id            uuid PRIMARY KEY,
    -- The shard in which the task is to live; the id says the same.
    shard         integer NOT NULL,
    -- In the form of the body of `POST /v1/tasks`.
    request       jsonb NOT NULL,
    submitted_at  timestamptz NOT NULL,
    -- Set when the row goes into another database. It may be there already, so it can no longer be cancelled here.
    leaving_at    timestamptz,
    error         text,
    refused_at    timestamptz,
    CHECK ((error IS NULL) = (refused_at IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Rows that a node is still to collect, oldest first; and refused rows, oldest first.
CREATE INDEX inbox_waiting ON duetime.inbox (submitted_at) WHERE error IS NULL;
CREATE INDEX inbox_refused ON duetime.inbox (refused_at) WHERE error IS NOT NULL;

-- Rows that came here out of another database's inbox. A second copy of a row finds its id and does nothing, whatever
-- has become of the task. A node deletes a row when that inbox holds nothing so old any more.
CREATE TABLE duetime.received (
    id           uuid PRIMARY KEY,
    source       text NOT NULL,
    -- For a task with a key: its outcome.
    answer       jsonb,
    received_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX received_source ON duetime.received (source, received_at);

-- Notes that a row of the inbox of `p_source` has arrived. True the first time; a second caller waits until the first
-- has ended.
CREATE FUNCTION duetime.receive_begin(p_id uuid, p_source text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO duetime.received (id, source) VALUES (p_id, p_source) ON CONFLICT (id) DO NOTHING;
    RETURN FOUND;
END
$$;

CREATE FUNCTION duetime.receive_end(p_id uuid, p_answer jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    -- The row has no outcome yet, so its next arrival is the first.
    IF p_answer ->> 'outcome' = 'busy' THEN
        DELETE FROM duetime.received WHERE id = p_id;
        RETURN p_answer;
    END IF;
    UPDATE duetime.received SET answer = p_answer WHERE id = p_id;
    RETURN p_answer;
END
$$;

-- The answer of the first arrival. It is a function of its own, because a function sees data that was committed while
-- its caller waited.
CREATE FUNCTION duetime.receive_answer(p_id uuid) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT r.answer FROM duetime.received AS r WHERE r.id = p_id);
END
$$;

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

-- Cancels an unclaimed task in the transaction of the caller, by the rule of `DELETE /v1/tasks/{id}`. Returns
-- `cancelled` or `no_further_attempts`; in any other case it raises an exception. The row stays locked until the
-- caller commits, and a claim skips it.
CREATE FUNCTION duetime.cancel(id uuid)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_id uuid := cancel.id;
    v_row duetime.inbox;
    v_gone duetime.task;
    v_found record;
    v_ended_at timestamptz;
    v_keep_ms bigint;
BEGIN
    -- Marks a row whose shard is in another database; a node takes the row there and keeps it as a cancelled task.
    UPDATE duetime.inbox AS i
       SET cancelled_at = coalesce(i.cancelled_at, clock_timestamp())
     WHERE i.id = v_id AND i.error IS NULL AND (i.leaving_at IS NULL OR i.cancelled_at IS NOT NULL)
       AND NOT EXISTS (SELECT FROM duetime.meta AS m WHERE i.shard BETWEEN m.first_shard AND m.last_shard);
    IF FOUND THEN
        PERFORM pg_notify('duetime_inbox', '');
        RETURN 'cancelled';
    END IF;
    DELETE FROM duetime.inbox AS i WHERE i.id = v_id AND i.leaving_at IS NULL RETURNING i.* INTO v_row;
    IF FOUND THEN
        IF v_row.error IS NULL THEN
            PERFORM duetime.inbox_cancelled(v_row);
        END IF;
        RETURN 'cancelled';
    END IF;
    IF EXISTS (SELECT FROM duetime.inbox AS i WHERE i.id = v_id) THEN
        RAISE EXCEPTION 'task % is on its way into another database and cannot be cancelled in this one; cancel it over HTTP', v_id
            USING ERRCODE = 'object_in_use';
    END IF;
    IF NOT EXISTS (SELECT FROM duetime.meta AS m WHERE get_byte(uuid_send(v_id), 14) * 256 + get_byte(uuid_send(v_id), 15)
                                                       BETWEEN m.first_shard AND m.last_shard) THEN
        RAISE EXCEPTION 'task % lives in another database; cancel it there or over HTTP', v_id USING ERRCODE = 'feature_not_supported';
    END IF;
    -- A row may leave the guard and come back to it between the two statements; five tries are enough.
    FOR v_try IN 1..5 LOOP
        DELETE FROM duetime.task AS t
         WHERE t.id = v_id AND t.state IN ('waiting', 'scheduled', 'ready')
        RETURNING t.* INTO v_gone;
        IF FOUND THEN
            v_ended_at := clock_timestamp();
            v_keep_ms := coalesce(
                (SELECT (q.policy ->> 'keep_succeeded_ms')::bigint FROM duetime.queue AS q WHERE q.name = v_gone.queue), 86400000);
            -- Copies each column as it was, whichever columns there are.
            INSERT INTO duetime.archive
            SELECT (jsonb_populate_record(NULL::duetime.archive, to_jsonb(v_gone) || jsonb_build_object(
                       'state', 'cancelled', 'finished_at', v_ended_at,
                       'drop_on', ((v_ended_at + v_keep_ms * interval '1 ms') AT TIME ZONE 'UTC')::date + 1))).*
                ON CONFLICT (drop_on, id) DO NOTHING;
            RETURN CASE v_gone.attempt WHEN 0 THEN 'cancelled' ELSE 'no_further_attempts' END;
        END IF;
        SELECT t.state, t.attempt INTO v_found
          FROM (SELECT t.state, t.attempt FROM duetime.task AS t WHERE t.id = v_id
                UNION ALL
                SELECT a.state, a.attempt
                  FROM (SELECT to_date(right(c.relname, 8), 'YYYYMMDD') AS drop_on
                          FROM pg_inherits AS i
                          JOIN pg_class AS c ON c.oid = i.inhrelid
                         WHERE i.inhparent = 'duetime.archive'::regclass AND NOT i.inhdetachpending) AS day
                 CROSS JOIN LATERAL (SELECT * FROM duetime.archive AS a WHERE a.drop_on = day.drop_on AND a.id = v_id LIMIT 1) AS a) AS t;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'there is no task %, or it finished so long ago that it was dropped', v_id USING ERRCODE = 'no_data_found';
        ELSIF v_found.state = 'cancelled' THEN
            RETURN CASE v_found.attempt WHEN 0 THEN 'cancelled' ELSE 'no_further_attempts' END;
        END IF;
        EXIT WHEN v_found.state NOT IN ('waiting', 'scheduled', 'ready');
    END LOOP;
    IF v_found.state >= 'succeeded' THEN
        RAISE EXCEPTION 'task % has finished, it is %', v_id, v_found.state USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    RAISE EXCEPTION 'task % is %: a copy is or may be on its way to a consumer', v_id, v_found.state USING ERRCODE = 'object_in_use';
END
$$;

-- `duetime migrate` grants both functions to duetime_producer.
REVOKE ALL ON FUNCTION duetime.submit, duetime.cancel FROM PUBLIC;
