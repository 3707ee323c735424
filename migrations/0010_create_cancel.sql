-- Creates duetime.cancel, by which an application cancels a task in SQL, and the function that it calls.
-- Locks: none that another session waits for; functions only.

-- Makes a cancelled task of a row that was cancelled before a node collected it. A request that cannot be a task
-- leaves nothing. A row whose shard lives in another database does not come here: see duetime.cancel and
-- task_collect_cancelled.sql.
CREATE FUNCTION duetime.inbox_cancelled(p_row duetime.inbox) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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
           v_ended_at, ((v_ended_at + v_keep_ms * interval '1 ms') AT TIME ZONE 'UTC')::date + 1
      FROM duetime.meta AS m
     WHERE p_row.shard BETWEEN m.first_shard AND m.last_shard;
EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN
    NULL;
END
$$;

REVOKE ALL ON FUNCTION duetime.inbox_cancelled FROM PUBLIC;

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

-- `duetime migrate` grants it to duetime_producer.
REVOKE ALL ON FUNCTION duetime.cancel FROM PUBLIC;
