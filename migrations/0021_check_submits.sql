-- Lets duetime.submit refuse what no node would take. So far only a node refused it, after the commit.
-- Lets duetime.cancel answer that an id without a shard of the cluster, and NULL, are of no task.
-- Lets duetime.cancel keep a cancelled task also while the archive lacks the partition of its day.
-- Lets both mean UTC in any session. From PostgreSQL 18 on, the name of a zone is looked up among the abbreviations of
-- the session's own zone first: with `SET TimeZone = 'UTC-3'`, `UTC` is three hours off. An interval is no name.
-- Makes long chains of dependencies quicker to submit.
-- Lets a change of a queue see which of its rules for submissions change, and its deletion whether it has tasks.
-- Locks: none that another session waits for; functions only.

-- Checks that apply to one option each are functions of their own: a submission without the option does not call them.
-- Each returns what the value must be, or NULL if it is right. The rules are those of `TaskRequest::validate` in
-- common/src/wire/task.rs; a test compares the two.

CREATE FUNCTION duetime.submit_check_queue(p_queue text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE
        WHEN p_queue IS NULL OR p_queue !~ '^[A-Za-z0-9._-]{1,128}$' THEN '1 to 128 of A-Z a-z 0-9 . _ -'
        WHEN p_queue ^@ 'amq.' OR p_queue ^@ 'duetime.' THEN 'a name that does not begin with duetime. or amq.'
    END;
END
$$;

-- The bounds of options that are whole numbers. That of `expires_after_ms` is the longest delay of any task.
CREATE FUNCTION duetime.submit_check_number(p_field text, p_value jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_first numeric := CASE p_field WHEN 'version' THEN 0 ELSE 1 END;
    v_last numeric := CASE p_field
        WHEN 'priority' THEN 5
        WHEN 'max_attempts' THEN 1000
        WHEN 'timeout_ms' THEN 31536000000                              -- a year
        WHEN 'expires_after_ms' THEN 250000000000000
        WHEN 'version' THEN 9223372036854775807
    END;
BEGIN
    RETURN CASE
        WHEN p_value::text !~ '^-?[0-9]+$' THEN 'a whole number'
        WHEN p_value::text::numeric NOT BETWEEN v_first AND v_last THEN v_first || ' to ' || v_last
    END;
END
$$;

-- PostgreSQL reads more than RFC 3339 allows, so the form is checked first. Of that form, it refuses days that no month
-- has, and distances from UTC of 16 hours and more.
CREATE FUNCTION duetime.submit_check_expires_at(p_value jsonb) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_must text := 'a time in RFC 3339 or in Unix milliseconds, before the end of the year 9999';
    v_text text := p_value #>> '{}';
BEGIN
    IF jsonb_typeof(p_value) = 'number' THEN
        RETURN CASE
            WHEN v_text::numeric <> trunc(v_text::numeric) OR v_text::numeric NOT BETWEEN -62167219200000 AND 253402300799000
            THEN v_must
        END;
    ELSIF jsonb_typeof(p_value) <> 'string'
          OR v_text !~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ]([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)([.][0-9]+)?([Zz]|[+-][0-9]{2}:[0-5][0-9])$'
          OR v_text::timestamptz > '9999-12-31 23:59:59+00' THEN
        RETURN v_must;
    END IF;
    RETURN NULL;
EXCEPTION WHEN data_exception THEN
    RETURN v_must;
END
$$;

CREATE FUNCTION duetime.submit_check_headers(p_headers jsonb) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF jsonb_typeof(p_headers) <> 'object' THEN
        RETURN 'a JSON object';
    ELSIF octet_length(p_headers::text) > 65536 THEN
        RETURN '8 KiB at most, names and values together';
    END IF;
    RETURN (
        SELECT CASE
               WHEN count(*) > 64 THEN '64 headers at most'
               WHEN bool_or(jsonb_typeof(h.value) <> 'string') THEN 'a map of strings'
               WHEN bool_or(lower(h.key COLLATE "C") ~ '^(duetime-|x-)' OR h.key IN ('CC', 'BCC'))
               THEN 'without the names that begin with duetime- or x-, and without CC and BCC'
               WHEN bool_or(octet_length(h.key) NOT BETWEEN 1 AND 255) THEN 'a map in which each name has 1 to 255 bytes'
               WHEN sum(octet_length(h.key) + octet_length(h.value #>> '{}')) > 8192
               THEN '8 KiB at most, names and values together' END
          FROM jsonb_each(p_headers) AS h);
END
$$;

-- A parameter of another kind of policy is a mistake, and so is one that is NULL.
CREATE FUNCTION duetime.submit_check_retry(p_retry jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_takes text[] := CASE p_retry ->> 'kind'
        WHEN 'polynomial' THEN '{}'
        WHEN 'immediate' THEN '{}'
        WHEN 'fixed' THEN '{delay_ms}'
        WHEN 'exponential' THEN '{base_ms,factor,max_ms,jitter}'
    END;
    v_longest numeric := 315360000000;                                  -- ten years
    v_field text;
    v_value jsonb;
    v_first numeric;
    v_last numeric;
BEGIN
    IF jsonb_typeof(p_retry) <> 'object' THEN
        RETURN 'a JSON object';
    ELSIF octet_length(p_retry::text) > 1024 THEN
        RETURN '1 KiB at most';
    ELSIF v_takes IS NULL THEN
        RETURN 'a policy whose `kind` is polynomial, exponential, fixed or immediate';
    ELSIF NOT p_retry ?& (v_takes[:1]) THEN
        RETURN format('a policy with `%s`', v_takes[1]);
    END IF;
    -- In this order, `base_ms` is known to be a number before `max_ms` is compared with it.
    FOR v_field, v_value IN SELECT r.key, r.value FROM jsonb_each(p_retry - 'kind') AS r ORDER BY r.key COLLATE "C" LOOP
        IF v_field <> ALL (v_takes) THEN
            RETURN format('a policy without `%s`, which its kind does not take', v_field);
        ELSIF jsonb_typeof(v_value) <> 'number' THEN
            RETURN format('a policy whose `%s` is a number', v_field);
        ELSIF v_field LIKE '%ms' AND v_value::numeric <> trunc(v_value::numeric) THEN
            RETURN format('a policy whose `%s` is a whole number', v_field);
        END IF;
        v_first := CASE v_field WHEN 'jitter' THEN 0 WHEN 'max_ms' THEN (p_retry -> 'base_ms')::numeric ELSE 1 END;
        v_last := CASE v_field WHEN 'jitter' THEN 1 WHEN 'factor' THEN 100 ELSE v_longest END;
        IF v_value::numeric NOT BETWEEN v_first AND v_last THEN
            RETURN format('a policy whose `%s` is %s to %s', v_field, v_first, v_last);
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

-- The tasks of a queue on one shard need no partition key to be together. The policy of the queue decides that.
CREATE FUNCTION duetime.submit_check_depends_on(p_queue text, p_key text, p_partition_key text, p_depends_on jsonb) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_one jsonb;
    v_queue text;
    v_key text;
BEGIN
    IF jsonb_typeof(p_depends_on) <> 'array' THEN
        RETURN 'a JSON array';
    ELSIF jsonb_array_length(p_depends_on) > 100 THEN
        RETURN '100 tasks at most';
    ELSIF octet_length(p_depends_on::text) > 262144 THEN
        RETURN '256 KiB at most';
    END IF;
    FOR v_one IN SELECT d.value FROM jsonb_array_elements(p_depends_on) AS d LOOP
        IF jsonb_typeof(v_one) = 'string' THEN
            v_queue := p_queue;
            v_key := v_one #>> '{}';
        ELSIF jsonb_typeof(v_one) = 'object' AND jsonb_typeof(v_one -> 'queue') = 'string'
              AND jsonb_typeof(v_one -> 'key') = 'string' AND v_one - '{queue,key}'::text[] = '{}' THEN
            v_queue := v_one ->> 'queue';
            v_key := v_one ->> 'key';
        ELSE
            RETURN 'an array of keys, or of objects with `queue` and `key`';
        END IF;
        IF duetime.submit_check_queue(v_queue) IS NOT NULL THEN
            RETURN 'an array in which each `queue` is ' || duetime.submit_check_queue(v_queue);
        ELSIF length(v_key) NOT BETWEEN 1 AND 256 THEN
            RETURN 'an array in which each key has 1 to 256 characters';
        ELSIF v_queue = p_queue AND v_key = p_key THEN
            RETURN 'an array without the key of the task itself';
        END IF;
    END LOOP;
    IF p_partition_key IS NULL AND p_depends_on <> '[]'
       AND NOT EXISTS (SELECT FROM duetime.queue AS q WHERE q.name = p_queue AND q.policy ->> 'placement' = 'single') THEN
        RETURN 'given with the `partition_key` that the tasks have in common';
    END IF;
    RETURN NULL;
END
$$;

-- The last character before the padding has no bits that are lost.
CREATE FUNCTION duetime.submit_check_base64(p_payload jsonb, p_base64 text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE
        WHEN jsonb_typeof(p_payload) <> 'null' THEN 'given with a NULL payload'
        WHEN octet_length(p_base64) > 1398104 THEN '1 MiB at most when it is decoded'
        WHEN p_base64 !~ '^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$'
        THEN 'standard base64 with padding'
    END;
END
$$;

CREATE FUNCTION duetime.submit_check_content_type(p_is_base64 boolean, p_content_type text) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE
        WHEN NOT p_is_base64 THEN CASE
            WHEN p_content_type <> 'application/json' THEN 'application/json, because there is no `payload_base64`' END
        WHEN octet_length(p_content_type) NOT BETWEEN 1 AND 255
             OR p_content_type ~ ('[' || chr(1) || '-' || chr(31) || chr(127) || '-' || chr(159) || ']')
        THEN '1 to 255 bytes without control characters'
    END;
END
$$;

-- Stood in 0009_create_submit.sql, which describes it. It finds everything about the values alone that a node refuses,
-- and takes the last moment of the year 9999 and all versions, as a node does.
CREATE OR REPLACE FUNCTION duetime.submit_check(p_queue text, p_payload jsonb, p_due_at timestamptz, p_key text, p_options jsonb)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_field text;
    v_value jsonb;
    v_must text := duetime.submit_check_queue(p_queue);
BEGIN
    IF v_must IS NOT NULL THEN
        v_field := 'queue';
    ELSIF p_due_at IS NULL OR p_due_at > '9999-12-31 23:59:59+00' THEN
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
            WHEN v_field IN ('version', 'on_duplicate') AND p_key IS NULL THEN 'left out: it applies only to a task with a key'
            WHEN v_field IN ('priority', 'version', 'max_attempts', 'timeout_ms', 'expires_after_ms')
                THEN duetime.submit_check_number(v_field, v_value)
            WHEN v_field = 'expires_at' THEN duetime.submit_check_expires_at(v_value)
            WHEN v_field = 'headers' THEN duetime.submit_check_headers(v_value)
            WHEN v_field = 'retry' THEN duetime.submit_check_retry(v_value)
            WHEN v_field = 'depends_on'
                THEN duetime.submit_check_depends_on(p_queue, p_key, p_options ->> 'partition_key', v_value)
            WHEN jsonb_typeof(v_value) <> 'string' THEN 'text'
            WHEN v_field = 'payload_base64' THEN duetime.submit_check_base64(p_payload, v_value #>> '{}')
            WHEN v_field = 'content_type'
                THEN duetime.submit_check_content_type(p_options ->> 'payload_base64' IS NOT NULL, v_value #>> '{}')
            WHEN v_field = 'on_duplicate' AND v_value #>> '{}' NOT IN ('keep', 'reject', 'replace', 'version')
                THEN 'keep, reject, replace or version'
            WHEN v_field = 'partition_key' AND length(v_value #>> '{}') NOT BETWEEN 1 AND 256 THEN '1 to 256 characters'
        END;
        IF v_must IS NOT NULL THEN
            RAISE EXCEPTION 'option `%` must be %', v_field, v_must USING ERRCODE = 'invalid_parameter_value', COLUMN = v_field;
        END IF;
    END LOOP;
END
$$;

-- Raises an exception if a task that is submitted at p_now would expire before it is due. Each option by itself is
-- right. The function compares seconds since 1970, because PostgreSQL rounds an interval of thousands of years.
CREATE FUNCTION duetime.submit_check_expiry(p_options jsonb, p_due_at timestamptz, p_now timestamptz) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_expires_at text := p_options ->> 'expires_at';
    v_after_ms numeric := p_options ->> 'expires_after_ms';
    v_field text := CASE WHEN v_after_ms IS NULL THEN 'expires_at' ELSE 'expires_after_ms' END;
    v_expires_s numeric;
    v_must text;
BEGIN
    v_expires_s := CASE
        WHEN v_after_ms IS NOT NULL THEN extract(epoch FROM p_now) + v_after_ms / 1000
        WHEN jsonb_typeof(p_options -> 'expires_at') = 'number' THEN v_expires_at::numeric / 1000
        ELSE extract(epoch FROM v_expires_at::timestamptz)
    END;
    v_must := CASE
        WHEN v_after_ms IS NOT NULL AND v_expires_at IS NOT NULL THEN 'left out beside `expires_at`'
        WHEN v_expires_s <= extract(epoch FROM p_due_at) THEN 'later than the time at which the task is due'
    END;
    IF v_must IS NOT NULL THEN
        RAISE EXCEPTION 'option `%` must be %', v_field, v_must USING ERRCODE = 'invalid_parameter_value', COLUMN = v_field;
    END IF;
END
$$;

-- Stood in 0014_place_submits.sql; 0009_create_submit.sql describes it. It notifies by notify_inbox of
-- 0017_quicken_submit.sql. Most submissions have no options and no key. One expression finds nothing wrong with them,
-- where submit_check would look for the wrong field, and they take any shard. The moment of the submission decides
-- about its expiry.
CREATE OR REPLACE FUNCTION duetime.submit(
    queue text, payload jsonb, due_at timestamptz DEFAULT now(), key text DEFAULT NULL, options jsonb DEFAULT '{}')
RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    v_shard_count integer;
    v_is_single boolean;
    v_shard integer;
    v_id uuid;
    v_now timestamptz := clock_timestamp();
    v_notified boolean;
BEGIN
    IF (submit.options = '{}' AND submit.key IS NULL AND submit.queue ~ '^[A-Za-z0-9._-]{1,128}$'
        AND NOT submit.queue ^@ 'amq.' AND NOT submit.queue ^@ 'duetime.'
        AND submit.due_at <= '9999-12-31 23:59:59+00' AND octet_length(submit.payload::text) <= 1048576) IS NOT TRUE
    THEN
        PERFORM duetime.submit_check(submit.queue, submit.payload, submit.due_at, submit.key, submit.options);
        IF submit.options ?| '{expires_at,expires_after_ms}' THEN
            PERFORM duetime.submit_check_expiry(submit.options, greatest(submit.due_at, v_now), v_now);
        END IF;
    END IF;
    SELECT m.shard_count,
           EXISTS (SELECT FROM duetime.queue AS q WHERE q.name = submit.queue AND q.policy ->> 'placement' = 'single')
      INTO STRICT v_shard_count, v_is_single
      FROM duetime.meta AS m;
    IF v_is_single OR submit.key IS NOT NULL OR submit.options ? 'partition_key' THEN
        v_shard := duetime.shard_of(
            submit.queue, v_is_single, submit.options ->> 'partition_key', submit.key, v_shard_count);
    END IF;
    v_shard := coalesce(v_shard, duetime.any_shard(v_shard_count));
    v_id := duetime.mint(v_now, v_shard);
    INSERT INTO duetime.inbox (id, shard, request, submitted_at)
    VALUES (v_id, v_shard, submit.options || jsonb_build_object(
                'queue', submit.queue, 'payload', submit.payload, 'key', submit.key,
                -- A due time in the past means now.
                'due_at', to_char(greatest(submit.due_at, v_now) AT TIME ZONE interval '0', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')), v_now);
    v_notified := duetime.notify_inbox();
    RETURN v_id;
END
$$;

-- Stood in 0014_place_submits.sql; 0010_create_cancel.sql describes it. It takes the day from 0018_spare_archive.sql.
CREATE OR REPLACE FUNCTION duetime.inbox_cancelled(p_row duetime.inbox) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r jsonb := p_row.request;
    v_ended_at timestamptz := clock_timestamp();
    v_binary boolean := coalesce(jsonb_typeof(r -> 'payload_base64') = 'string', false);
    v_keep_ms bigint;
BEGIN
    v_keep_ms := coalesce(
        (SELECT (q.policy ->> 'keep_succeeded_ms')::bigint FROM duetime.queue AS q WHERE q.name = r ->> 'queue'), 86400000);
    INSERT INTO duetime.archive (
        id, shard, queue, state, wake_at, due_at, expires_at, priority, max_attempts, timeout_ms, retry, payload, content_type, headers, key,
        partition_key, version, created_at, finished_at, drop_on)
    SELECT p_row.id, p_row.shard, r ->> 'queue', 'cancelled', (r ->> 'due_at')::timestamptz, (r ->> 'due_at')::timestamptz,
           CASE WHEN jsonb_typeof(r -> 'expires_at') = 'number' THEN to_timestamp((r ->> 'expires_at')::numeric / 1000)
                WHEN jsonb_typeof(r -> 'expires_after_ms') = 'number'
                THEN p_row.submitted_at + (r ->> 'expires_after_ms')::bigint * interval '1 ms'
                ELSE (r ->> 'expires_at')::timestamptz END,
           coalesce((r ->> 'priority')::smallint, 3), (r ->> 'max_attempts')::integer, (r ->> 'timeout_ms')::bigint,
           nullif(r -> 'retry', 'null'),
           CASE WHEN v_binary THEN decode(r ->> 'payload_base64', 'base64') ELSE convert_to(coalesce(r -> 'payload', 'null')::text, 'UTF8') END,
           coalesce(r ->> 'content_type', CASE WHEN v_binary THEN 'application/octet-stream' ELSE 'application/json' END),
           nullif(r -> 'headers', 'null'), r ->> 'key', r ->> 'partition_key', coalesce((r ->> 'version')::bigint, 0), p_row.submitted_at,
           v_ended_at, duetime.drop_day(v_ended_at, v_keep_ms)
     WHERE duetime.has_shard(p_row.shard);
EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN
    NULL;
END
$$;

-- Stood in 0014_place_submits.sql; 0010_create_cancel.sql describes it. A shard beyond those of the cluster is in no
-- database. It notifies as `submit` does: a row whose mark has no notification of its own is found within half a
-- second.
CREATE OR REPLACE FUNCTION duetime.cancel(id uuid)
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
    IF v_id IS NULL THEN
        RAISE EXCEPTION 'there is no task without an id' USING ERRCODE = 'no_data_found';
    END IF;
    -- With this setting the functions of a move pass the gate (0012_gate_shards.sql). The caller must not.
    PERFORM set_config('duetime.mover', '', true);
    -- Marks a row whose shard is in another database; a node takes the row there and keeps it as a cancelled task.
    UPDATE duetime.inbox AS i
       SET cancelled_at = coalesce(i.cancelled_at, clock_timestamp())
     WHERE i.id = v_id AND i.refused_at IS NULL AND (i.leaving_at IS NULL OR i.cancelled_at IS NOT NULL)
       AND NOT duetime.has_shard(i.shard);
    IF FOUND THEN
        PERFORM duetime.notify_inbox();
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
    IF NOT duetime.has_shard(duetime.shard_in(v_id)) THEN
        IF duetime.shard_in(v_id) >= (SELECT m.shard_count FROM duetime.meta AS m) THEN
            RAISE EXCEPTION 'there is no task %: its id is not of this cluster', v_id USING ERRCODE = 'no_data_found';
        END IF;
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
            -- Copies each column as it was, whichever columns there are. The function stands in FROM: in the columns,
            -- PostgreSQL would call it once for each column.
            INSERT INTO duetime.archive
            SELECT a.*
              FROM jsonb_populate_record(NULL::duetime.archive, to_jsonb(v_gone) || jsonb_build_object(
                       'state', 'cancelled', 'finished_at', v_ended_at,
                       'drop_on', duetime.drop_day(v_ended_at, v_keep_ms))) AS a
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

-- Stood in 0014_place_submits.sql; 0007_create_lookups.sql describes it. Most tasks have few before them, so it looks
-- through 100 first. Only a task for which another one waits can close a circle, so without such a one it looks no
-- further. It does not look for such a one first: the index finds those of that name in all partitions, and each
-- partition may use the same names.
CREATE OR REPLACE FUNCTION duetime.depends_on_itself(p_queue text, p_partition_key text, p_key text, p_depends_on text[]) RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_name text := p_queue || ' ' || p_key;
    v_most integer;
    v_looked integer;
    v_is_found boolean;
BEGIN
    FOREACH v_most IN ARRAY ARRAY[100, 10000] LOOP
        WITH RECURSIVE before AS (
            SELECT unnest(p_depends_on) AS name
            UNION
            SELECT unnest(newest.depends_on)
              FROM before
             CROSS JOIN LATERAL (
                   SELECT CASE WHEN t.state = 'waiting' THEN t.depends_on END AS depends_on
                     FROM duetime.task AS t
                    WHERE t.queue = split_part(before.name, ' ', 1) AND t.key = substr(before.name, strpos(before.name, ' ') + 1)
                      AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '') AND duetime.is_here(t.shard)
                    ORDER BY t.version DESC
                    LIMIT 1) AS newest
        ), looked AS (
            SELECT name FROM before LIMIT v_most + 1
        )
        SELECT bool_or(name = v_name), count(*) INTO v_is_found, v_looked FROM looked;
        IF v_is_found THEN
            RETURN 'cycle';
        ELSIF v_looked <= v_most OR NOT EXISTS (
            SELECT FROM duetime.task AS t
             WHERE t.depends_on @> ARRAY[v_name] AND t.state = 'waiting'
               AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '')) THEN
            RETURN NULL;
        END IF;
    END LOOP;
    RETURN 'deep';
END
$$;

-- The policy that is in force now; NULL: there is no such queue. Like queue_placement in 0002_create_queues.sql, it
-- sees data that was committed while its caller waited.
CREATE FUNCTION duetime.queue_policy(p_queue text) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT q.policy FROM duetime.queue AS q WHERE q.name = p_queue);
END
$$;

-- Whether the queue has unfinished tasks here, with those that were committed while the caller waited. In the order of
-- the index task_queue_due the first one is enough, whatever the statistics say about the queue.
CREATE FUNCTION duetime.queue_has_tasks(p_queue text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM duetime.task AS t WHERE t.queue = p_queue AND duetime.is_here(t.shard) ORDER BY t.due_at, t.id LIMIT 1;
    RETURN FOUND;
END
$$;
