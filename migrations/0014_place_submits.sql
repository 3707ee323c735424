-- Lets the statements of applications and of new owners read the places of shards in the fence rows.
-- Locks: none that another session waits for; functions only.

-- Acquires the fences of some shards, as shard_acquire.sql does: those that are here or leave, and of the closed ones
-- only those in p_closed, whose owner has to finish their move. It is a function of its own beside the one of
-- 0006_create_guards.sql, which nodes of the first release call.
CREATE FUNCTION duetime.acquire_in_turn(p_shards integer[], p_owner text, p_incarnation uuid, p_closed integer[])
RETURNS TABLE (id integer, epoch bigint) LANGUAGE plpgsql SET lock_timeout = '250ms' AS $$
#variable_conflict use_column
BEGIN
    LOCK TABLE duetime.shard IN EXCLUSIVE MODE;
    RETURN QUERY
    UPDATE duetime.shard AS s
       SET epoch = s.epoch + 1, owner = p_owner, incarnation = p_incarnation, acquired_at = clock_timestamp()
     WHERE s.id = ANY(p_shards) AND (s.status IN ('here', 'leaving') OR s.status = 'gone' AND s.id = ANY(p_closed))
    RETURNING s.id, s.epoch;
END
$$;

-- Whether this database has the shard, so that its tasks may be written here.
CREATE FUNCTION duetime.has_shard(p_shard integer) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM duetime.shard AS s WHERE s.id = p_shard AND s.status IN ('here', 'leaving'))
$$;

-- Whether rows of the shard count here: they are neither left over from a move nor a copy that arrives.
CREATE FUNCTION duetime.is_here(p_shard integer) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (SELECT FROM duetime.shard AS s WHERE s.id = p_shard AND s.status IN ('gone', 'arriving'))
$$;

-- Ends a statement about a shard that this database does not have (any more). The statement did nothing, and its
-- sender may send it to the shard's place. A function takes a new snapshot, so it sees a move that was committed while
-- its caller waited.
CREATE FUNCTION duetime.require_place(p_shards integer[]) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_shard integer;
BEGIN
    SELECT asked.id INTO v_shard
      FROM unnest(p_shards) AS asked (id)
     WHERE NOT EXISTS (SELECT FROM duetime.shard AS s WHERE s.id = asked.id AND s.status IN ('here', 'leaving'))
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'shard % has moved to another database', v_shard USING ERRCODE = 'DT001';
    END IF;
    RETURN true;
END
$$;

-- A shard for a task that may live anywhere: one of this database at random. A few probes find one; if they do not,
-- the function reads all fences. A database without shards takes any shard of the cluster.
CREATE FUNCTION duetime.any_shard(p_shard_count integer) RETURNS integer LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog AS $$
DECLARE
    v_shard integer;
BEGIN
    FOR v_try IN 1..8 LOOP
        v_shard := floor(random() * p_shard_count)::integer;
        IF duetime.has_shard(v_shard) THEN
            RETURN v_shard;
        END IF;
    END LOOP;
    RETURN coalesce(
        (SELECT s.id FROM duetime.shard AS s WHERE s.status IN ('here', 'leaving') ORDER BY random() LIMIT 1), v_shard);
END
$$;

-- The functions below leave out rows of shards that have moved. They stood in 0007_create_lookups.sql, which describes
-- them.

CREATE OR REPLACE FUNCTION duetime.standing_of(p_name text, p_partition_key text) RETURNS duetime.task_state
LANGUAGE sql STABLE AS $$
    SELECT coalesce(
        (SELECT t.state
           FROM duetime.task AS t
          WHERE t.queue = split_part(p_name, ' ', 1) AND t.key = substr(p_name, strpos(p_name, ' ') + 1)
            AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '') AND duetime.is_here(t.shard)
          ORDER BY t.version DESC
          LIMIT 1),
        (SELECT a.state
           FROM duetime.archive AS a
          WHERE a.queue = split_part(p_name, ' ', 1) AND a.key = substr(p_name, strpos(p_name, ' ') + 1)
            AND a.partition_key IS NOT DISTINCT FROM p_partition_key AND duetime.is_here(a.shard)
          ORDER BY a.version DESC, a.finished_at DESC
          LIMIT 1))
$$;

CREATE OR REPLACE FUNCTION duetime.depends_on_itself(p_queue text, p_partition_key text, p_key text, p_depends_on text[]) RETURNS text
LANGUAGE sql VOLATILE AS $$
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
        SELECT name FROM before LIMIT 10001
    )
    SELECT CASE WHEN bool_or(name = p_queue || ' ' || p_key) THEN 'cycle' WHEN count(*) > 10000 THEN 'deep' END FROM looked
$$;

CREATE OR REPLACE FUNCTION duetime.key_finished(
    p_queue text, p_partition_key text, p_key text, p_id uuid, p_versions boolean, p_since timestamptz)
RETURNS TABLE (id uuid, state duetime.task_state, due_at timestamptz, created_at timestamptz, version bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_elsewhere integer[];
BEGIN
    IF NOT EXISTS (SELECT FROM duetime.archive AS a
                    WHERE a.queue = p_queue AND a.key = p_key AND coalesce(a.partition_key, '') = coalesce(p_partition_key, '')) THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT s.id, s.state, s.due_at, s.created_at, s.version FROM duetime.task_sent(p_id) AS s WHERE s.state >= 'succeeded';
    IF FOUND THEN
        RETURN;
    END IF;
    -- A list rather than is_here: with a function the planner would not follow the indexes.
    v_elsewhere := ARRAY(SELECT s.id FROM duetime.shard AS s WHERE s.status IN ('gone', 'arriving'));
    RETURN QUERY
    WITH recent AS MATERIALIZED (
        SELECT a.*
          FROM (VALUES (true), (false)) AS c (holds)
         CROSS JOIN LATERAL (
               SELECT a.id, a.state, a.due_at, a.created_at, a.version
                 FROM duetime.archive AS a
                WHERE a.queue = p_queue AND a.key = p_key AND coalesce(a.partition_key, '') = coalesce(p_partition_key, '')
                  AND (a.state IN ('succeeded', 'dead')) = c.holds AND a.finished_at > p_since AND a.shard <> ALL(v_elsewhere)
                ORDER BY a.finished_at DESC
                LIMIT 100) AS a
         WHERE c.holds OR p_versions
    )
    SELECT newest.*
      FROM (SELECT r.* FROM recent AS r WHERE (SELECT count(*) FROM recent) < 100
             UNION ALL
            (SELECT a.id, a.state, a.due_at, a.created_at, a.version
               FROM duetime.archive AS a
              WHERE (SELECT count(*) FROM recent) >= 100
                AND a.queue = p_queue AND a.key = p_key AND coalesce(a.partition_key, '') = coalesce(p_partition_key, '')
                AND a.finished_at > p_since AND (p_versions OR a.state IN ('succeeded', 'dead')) AND a.shard <> ALL(v_elsewhere)
              ORDER BY a.version DESC, a.created_at DESC
              LIMIT 1)) AS newest
     ORDER BY newest.version DESC, newest.created_at DESC
     LIMIT 1;
END
$$;

-- The next two stood in 0008_create_keyed_writes.sql, which describes them. They too leave out rows of shards that have
-- moved.

CREATE OR REPLACE FUNCTION duetime.task_put(
    p_id uuid, p_shard integer, p_queue text, p_due_at timestamptz, p_now boolean, p_priority smallint, p_payload bytea,
    p_content_type text, p_headers jsonb, p_partition_key text, p_max_attempts integer, p_timeout_ms bigint, p_retry jsonb,
    p_expires_at timestamptz, p_key text, p_version bigint, p_on_duplicate text, p_window interval, p_keep_ms bigint,
    p_depends_on text[], p_after timestamptz DEFAULT NULL, p_until timestamptz DEFAULT NULL)
RETURNS TABLE (
    outcome text, id uuid, state duetime.task_state, due_at timestamptz, created_at timestamptz, version bigint, superseded bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_found record;
    v_other record;
    v_due_at timestamptz;
    v_superseded bigint := 0;
    v_loop text := CASE WHEN p_depends_on IS NOT NULL
                        THEN duetime.depends_on_itself(p_queue, p_partition_key, p_key, p_depends_on) END;
    v_state duetime.task_state := CASE WHEN p_depends_on IS NULL THEN 'scheduled' ELSE 'waiting' END;
BEGIN
    -- A queue's name has no blank, so a blank keeps the three parts apart. Without a key the id takes its place.
    PERFORM pg_advisory_xact_lock(hashtextextended(p_queue || ' ' || coalesce(length(p_partition_key), 0) || ' ' || coalesce(p_partition_key, '') || coalesce(p_key, p_id::text), 0));
    IF statement_timestamp() <= p_after OR clock_timestamp() > p_until THEN
        PERFORM duetime.out_of_time();
    END IF;
    LOOP
        v_due_at := CASE WHEN p_now THEN clock_timestamp() ELSE p_due_at END;
        SELECT * INTO v_found
          FROM (SELECT t.id, t.state, t.due_at, t.created_at, t.version, true AS live
                  FROM duetime.task AS t
                 WHERE t.queue = p_queue AND t.key = p_key AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '') AND duetime.is_here(t.shard)
                UNION ALL
                SELECT f.id, f.state, f.due_at, f.created_at, f.version, false
                  FROM duetime.key_finished(
                       p_queue, p_partition_key, p_key, p_id, p_on_duplicate = 'version', clock_timestamp() - p_window) AS f
                 WHERE p_key IS NOT NULL
                UNION ALL
                SELECT s.id, s.state, s.due_at, s.created_at, s.version, true
                  FROM duetime.task_sent(p_id) AS s
                 WHERE p_key IS NULL) AS newest
         ORDER BY newest.id = p_id DESC, newest.version DESC, newest.live DESC, newest.created_at DESC
         LIMIT 1;
        IF NOT FOUND OR (p_on_duplicate = 'version' AND v_found.id <> p_id AND p_version > v_found.version) THEN
            EXIT;
        END IF;
        outcome := CASE
            WHEN v_found.id = p_id THEN 'created'                       -- sent again, and the first sending went in
            WHEN p_on_duplicate = 'keep' THEN 'existing'
            WHEN p_on_duplicate = 'reject' THEN 'refused'
            WHEN p_on_duplicate = 'replace' AND v_found.state > 'ready' THEN 'refused'
            WHEN p_on_duplicate = 'version' AND p_version < v_found.version THEN 'stale'
            WHEN v_found.state IN ('dispatching', 'delivered', 'running', 'succeeded') THEN 'existing'
            WHEN v_found.live THEN 'replaced'
        END;
        EXIT WHEN outcome IS NULL;                                      -- that version failed: make a new task
        -- The requested version may be that of an older task in flight.
        IF outcome = 'replaced' AND p_version <> v_found.version THEN
            SELECT t.id, t.state, t.due_at, t.created_at, t.version, true AS live INTO v_other
              FROM duetime.task AS t
             WHERE t.queue = p_queue AND t.key = p_key AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '') AND duetime.is_here(t.shard)
               AND t.version = p_version;
            IF FOUND THEN
                v_found := v_other;
                outcome := 'refused';
            END IF;
        END IF;
        IF outcome = 'replaced' AND v_loop IS NOT NULL THEN
            outcome := v_loop;
        END IF;
        IF outcome = 'replaced' AND NOT duetime.task_lock(ARRAY[v_found.id]) THEN
            outcome := 'busy';
        END IF;
        IF outcome = 'replaced' THEN
            UPDATE duetime.task AS t
               SET state = v_state, depends_on = p_depends_on, depends_met = NULL, wake_at = v_due_at, due_at = v_due_at,
                   priority = p_priority, payload = p_payload, content_type = p_content_type, headers = p_headers,
                   max_attempts = p_max_attempts, timeout_ms = p_timeout_ms, retry = p_retry, expires_at = p_expires_at,
                   version = p_version
             WHERE t.id = v_found.id AND t.state IN ('waiting', 'scheduled', 'ready')
            RETURNING t.state INTO v_found.state;
            CONTINUE WHEN NOT FOUND;                                    -- claimed or cancelled meanwhile
            v_found.due_at := v_due_at;
            v_found.version := p_version;
        END IF;
        RETURN QUERY SELECT outcome, v_found.id, v_found.state, v_found.due_at, v_found.created_at, v_found.version, 0::bigint;
        RETURN;
    END LOOP;

    IF v_loop IS NOT NULL THEN
        RETURN QUERY SELECT v_loop, p_id, v_state, v_due_at, clock_timestamp(), p_version, 0::bigint;
        RETURN;
    END IF;

    -- A newer version: unclaimed older ones are superseded, and one in flight gets no further attempt.
    IF p_on_duplicate = 'version' THEN
        IF NOT duetime.task_lock(ARRAY(
            SELECT t.id
              FROM duetime.task AS t
             WHERE t.queue = p_queue AND t.key = p_key AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '') AND duetime.is_here(t.shard)
               AND t.version < p_version)) THEN
            RETURN QUERY SELECT 'busy'::text, p_id, v_state, v_due_at, clock_timestamp(), p_version, 0::bigint;
            RETURN;
        END IF;
        WITH gone AS (
            DELETE FROM duetime.task AS t
             WHERE t.queue = p_queue AND t.key = p_key AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '') AND duetime.is_here(t.shard)
               AND t.version < p_version AND t.state IN ('waiting', 'scheduled', 'ready')
            RETURNING t.*
        ), kept AS (
            INSERT INTO duetime.archive (
                id, shard, queue, state, wake_at, due_at, expires_at, priority, attempt, attempts_base, max_attempts, timeout_ms,
                retry, payload, content_type, headers, key, partition_key, version, claim_epoch, claimed_at, redeliveries,
                delivered_at, progress, worker, history, created_at, finished_at, drop_on)
            SELECT id, shard, queue, 'superseded', wake_at, due_at, expires_at, priority, attempt, attempts_base, max_attempts,
                   timeout_ms, retry, payload, content_type, headers, key, partition_key, version, claim_epoch, claimed_at,
                   redeliveries, delivered_at, progress, worker, history, created_at, clock_timestamp(),
                   ((clock_timestamp() + p_keep_ms * interval '1 ms') AT TIME ZONE 'UTC')::date + 1
              FROM gone
                ON CONFLICT (drop_on, id) DO NOTHING
            RETURNING 1
        )
        SELECT count(*) INTO v_superseded FROM kept;
        UPDATE duetime.task AS t
           SET max_attempts = greatest(1, t.attempt - t.attempts_base)
         WHERE t.queue = p_queue AND t.key = p_key AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '') AND duetime.is_here(t.shard)
           AND t.version < p_version;
    END IF;

    INSERT INTO duetime.task (
        id, shard, queue, state, wake_at, due_at, priority, payload, content_type, headers, partition_key, max_attempts,
        timeout_ms, retry, expires_at, key, version, depends_on)
    VALUES (p_id, p_shard, p_queue, v_state, v_due_at, v_due_at, p_priority, p_payload, p_content_type, p_headers,
            p_partition_key, p_max_attempts, p_timeout_ms, p_retry, p_expires_at, p_key, p_version, p_depends_on);
    RETURN QUERY SELECT 'created'::text, p_id, v_state, v_due_at, clock_timestamp(), p_version, v_superseded;
END
$$;

CREATE OR REPLACE FUNCTION duetime.task_revive(p_drop_on date, p_id uuid, p_wait boolean) RETURNS SETOF duetime.task LANGUAGE plpgsql AS $$
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
                      AND coalesce(t.partition_key, '') = coalesce(v_dead.partition_key, '') AND duetime.is_here(t.shard))
           OR EXISTS (SELECT FROM duetime.archive AS a
                       WHERE a.queue = v_dead.queue AND a.key = v_dead.key AND a.version > v_dead.version
                         AND a.partition_key IS NOT DISTINCT FROM v_dead.partition_key AND duetime.is_here(a.shard)) THEN
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

-- Stood in 0009_create_submit.sql, which describes it. A task that may live anywhere gets a shard of this database.
CREATE OR REPLACE FUNCTION duetime.submit(
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
        duetime.any_shard(v_meta.shard_count));
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

-- The next two stood in 0010_create_cancel.sql, which describes them. The fence rows say which shards are here.

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
           v_ended_at, ((v_ended_at + v_keep_ms * interval '1 ms') AT TIME ZONE 'UTC')::date + 1
     WHERE duetime.has_shard(p_row.shard);
EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN
    NULL;
END
$$;

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
    -- With this setting the functions of a move pass the gate (0012_gate_shards.sql). The caller must not.
    PERFORM set_config('duetime.mover', '', true);
    -- Marks a row whose shard is in another database; a node takes the row there and keeps it as a cancelled task.
    UPDATE duetime.inbox AS i
       SET cancelled_at = coalesce(i.cancelled_at, clock_timestamp())
     WHERE i.id = v_id AND i.error IS NULL AND (i.leaving_at IS NULL OR i.cancelled_at IS NOT NULL)
       AND NOT duetime.has_shard(i.shard);
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
    IF NOT duetime.has_shard(duetime.shard_in(v_id)) THEN
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
