-- Creates the two functions that decide about a business key: task_put takes a task in, task_revive brings a dead one
-- back.
-- Locks: none that another session waits for; functions only.

-- Takes in one task that has a key or waits for others, or both. The request says what to do when that key exists
-- already (`p_on_duplicate`). A task that waits for others begins as `waiting`.
--
-- One caller at a time decides about a key. The function takes the lock of the key first, and each statement after it
-- sees what was committed before. A function takes a new snapshot for each statement; one statement alone would still
-- see the data from before its wait. A claim, a cancel or the end of a task does not take the lock. So each change
-- here is a compare-and-set on the row's state, and when it finds nothing, the function looks at the row again.
--
-- A finished task counts while it is kept and for no longer than `p_window`. A task that was cancelled, superseded or
-- has expired does not hold its key; it counts only for the order of versions.
--
-- The function writes nothing outside of the time window that the sender gave: after `p_after`, before `p_until`
-- (NULL: no bound). A sending that was held up until then must not overwrite a later one.
--
-- Outcome: `created`; `existing` (the existing task is the answer); `replaced` (in place: same id); `refused` (the
-- existing task stands against this one); `stale` (a newer version is known); `cycle` and `deep`, see
-- depends_on_itself; `busy` (another transaction holds a task with this key, and the function did nothing). The other
-- columns describe the task that exists now.
CREATE FUNCTION duetime.task_put(
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
                 WHERE t.queue = p_queue AND t.key = p_key AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '')
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
             WHERE t.queue = p_queue AND t.key = p_key AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '')
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
             WHERE t.queue = p_queue AND t.key = p_key AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '')
               AND t.version < p_version)) THEN
            RETURN QUERY SELECT 'busy'::text, p_id, v_state, v_due_at, clock_timestamp(), p_version, 0::bigint;
            RETURN;
        END IF;
        WITH gone AS (
            DELETE FROM duetime.task AS t
             WHERE t.queue = p_queue AND t.key = p_key AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '')
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
         WHERE t.queue = p_queue AND t.key = p_key AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '')
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
