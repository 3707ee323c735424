-- Guards against a write that comes late, and against one beside a newer task.
-- Locks: none that another session waits for; functions only.

-- Ends a statement that runs outside of the time window that its sender gave it. If it is late, another sending may
-- have taken its place. If it is early, the window of the sending before it is still open. It raises a serialization
-- failure: the statement did nothing, and its sender may send it again.
CREATE FUNCTION duetime.out_of_time() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the statement was executed outside of the time that its sender gave it' USING ERRCODE = 'serialization_failure';
END
$$;

-- Ends a statement that inserts a task which has already finished. It takes a new snapshot, so it sees data that was
-- committed while its caller waited.
CREATE FUNCTION duetime.not_finished(p_id uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT
          FROM (SELECT to_date(right(c.relname, 8), 'YYYYMMDD') AS drop_on
                  FROM pg_inherits AS i
                  JOIN pg_class AS c ON c.oid = i.inhrelid
                 WHERE i.inhparent = 'duetime.archive'::regclass AND NOT i.inhdetachpending) AS day
         CROSS JOIN LATERAL (SELECT FROM duetime.archive AS a WHERE a.drop_on = day.drop_on AND a.id = p_id LIMIT 1) AS a) THEN
        PERFORM duetime.out_of_time();
    END IF;
    RETURN true;
END
$$;

-- Gives a dead task new attempts: moves it back from the archive, due now. No row: the task is not dead any more.
-- The function first takes the lock of the task's key, which task_put takes too; the statements after it see what was
-- committed before. Two kinds of task with the same key put the dead task out of date: an unfinished one of this
-- version or a newer one, and a kept one of a newer version.
-- `p_wait`: the function waits for locks, and raises a unique violation about such a task. Without it, the function
-- returns no row when a lock is held or such a task exists.
CREATE FUNCTION duetime.task_revive(p_drop_on date, p_id uuid, p_wait boolean) RETURNS SETOF duetime.task LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_dead duetime.archive;
    v_lock bigint;
BEGIN
    SELECT a.* INTO v_dead FROM duetime.archive AS a WHERE a.drop_on = p_drop_on AND a.id = p_id AND a.state = 'dead';
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_dead.key IS NOT NULL THEN
        -- The lock that task_put takes.
        v_lock := hashtextextended(v_dead.queue || ' ' || coalesce(length(v_dead.partition_key), 0) || ' '
                                   || coalesce(v_dead.partition_key, '') || v_dead.key, 0);
        IF p_wait THEN
            PERFORM pg_advisory_xact_lock(v_lock);
        ELSIF NOT pg_try_advisory_xact_lock(v_lock) THEN
            RETURN;
        END IF;
        IF EXISTS (SELECT FROM duetime.task AS t
                    WHERE t.queue = v_dead.queue AND t.key = v_dead.key AND t.version >= v_dead.version
                      AND coalesce(t.partition_key, '') = coalesce(v_dead.partition_key, ''))
           OR EXISTS (SELECT FROM duetime.archive AS a
                       WHERE a.queue = v_dead.queue AND a.key = v_dead.key AND a.version > v_dead.version
                         AND a.partition_key IS NOT DISTINCT FROM v_dead.partition_key) THEN
            IF p_wait THEN
                RAISE EXCEPTION 'another task has the key of %', p_id USING ERRCODE = 'unique_violation', CONSTRAINT = 'task_key_version';
            END IF;
            RETURN;
        END IF;
    END IF;
    IF NOT p_wait THEN
        PERFORM FROM duetime.archive AS a WHERE a.drop_on = p_drop_on AND a.id = p_id FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END IF;
    DELETE FROM duetime.archive AS a
     WHERE a.drop_on = p_drop_on AND a.id = p_id AND a.state = 'dead'
    RETURNING a.* INTO v_dead;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY
    INSERT INTO duetime.task AS t (
        id, shard, queue, state, wake_at, due_at, expires_at, priority, attempt, attempts_base, max_attempts, timeout_ms, retry,
        payload, content_type, headers, key, partition_key, version, claim_epoch, claimed_at, history, created_at, envelope)
    VALUES (v_dead.id, v_dead.shard, v_dead.queue, 'scheduled', now(), now(), CASE WHEN v_dead.expires_at > now() THEN v_dead.expires_at END,
            v_dead.priority, v_dead.attempt, v_dead.attempt, v_dead.max_attempts, v_dead.timeout_ms, v_dead.retry, v_dead.payload,
            v_dead.content_type, v_dead.headers, v_dead.key, v_dead.partition_key, v_dead.version, v_dead.claim_epoch,
            v_dead.claimed_at, v_dead.history, v_dead.created_at, v_dead.envelope)
    RETURNING t.*;
END
$$;

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
