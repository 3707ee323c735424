-- Tasks with a business key: at most one unfinished task for each queue, partition key, key and version.
-- Locks: SHARE on task while the index is built: writes wait, reads go on. The migration reads the table once.

CREATE UNIQUE INDEX task_key_version ON duetime.task (queue, key, coalesce(partition_key, ''), version) WHERE key IS NOT NULL;
DROP INDEX duetime.task_key;

-- Takes in one task that has a key. The request says what to do when that key exists already (`on_duplicate`).
--
-- One caller at a time decides about a key. The function takes the lock of the key first, and each statement after it
-- sees what was committed before. A function takes a new snapshot for each statement; one statement alone would still
-- see the data from before its wait. A claim, a cancel or the end of a task does not take the lock. So each change
-- here is a compare-and-set on the row's state, and when it finds nothing, the function looks at the row again.
--
-- A finished task counts while it is kept and for no longer than `p_window`. A task that was cancelled, superseded or
-- has expired does not hold its key; it counts only for the order of versions.
--
-- Outcome: `created`; `existing` (the existing task is the answer); `replaced` (in place: same id); `refused` (the
-- existing task stands against this one); `stale` (a newer version is known). The other columns describe the task
-- that exists now.
CREATE FUNCTION duetime.task_put(
    p_id uuid, p_shard integer, p_queue text, p_due_at timestamptz, p_now boolean, p_priority smallint, p_payload bytea,
    p_content_type text, p_headers jsonb, p_partition_key text, p_max_attempts integer, p_timeout_ms bigint, p_retry jsonb,
    p_expires_at timestamptz, p_key text, p_version bigint, p_on_duplicate text, p_window interval, p_keep_ms bigint)
RETURNS TABLE (
    outcome text, id uuid, state duetime.task_state, due_at timestamptz, created_at timestamptz, version bigint, superseded bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_found record;
    v_due_at timestamptz;
    v_superseded bigint := 0;
BEGIN
    -- A queue's name has no blank, so a blank keeps the three parts apart.
    PERFORM pg_advisory_xact_lock(hashtextextended(p_queue || ' ' || coalesce(length(p_partition_key), 0) || ' ' || coalesce(p_partition_key, '') || p_key, 0));
    LOOP
        v_due_at := CASE WHEN p_now THEN clock_timestamp() ELSE p_due_at END;
        SELECT * INTO v_found
          FROM (SELECT t.id, t.state, t.due_at, t.created_at, t.version, true AS live
                  FROM duetime.task AS t
                 WHERE t.queue = p_queue AND t.key = p_key AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '')
                UNION ALL
                SELECT a.id, a.state, a.due_at, a.created_at, a.version, false
                  FROM duetime.archive AS a
                 WHERE a.queue = p_queue AND a.key = p_key AND a.partition_key IS NOT DISTINCT FROM p_partition_key
                   AND (   a.id = p_id
                        OR (a.finished_at > clock_timestamp() - p_window
                            AND (a.state IN ('succeeded', 'dead') OR p_on_duplicate = 'version')))) AS newest
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
        IF outcome = 'replaced' THEN
            UPDATE duetime.task AS t
               SET state = CASE WHEN t.state = 'ready' THEN 'scheduled' ELSE t.state END, wake_at = v_due_at, due_at = v_due_at,
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

    -- A newer version: unclaimed older ones are superseded, and one in flight gets no further attempt.
    IF p_on_duplicate = 'version' THEN
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
        timeout_ms, retry, expires_at, key, version)
    VALUES (p_id, p_shard, p_queue, 'scheduled', v_due_at, v_due_at, p_priority, p_payload, p_content_type, p_headers,
            p_partition_key, p_max_attempts, p_timeout_ms, p_retry, p_expires_at, p_key, p_version);
    RETURN QUERY SELECT 'created'::text, p_id, 'scheduled'::duetime.task_state, v_due_at, clock_timestamp(), p_version, v_superseded;
END
$$;
