-- Tasks that wait for others: the dependencies of each, and the index that leads from a task that succeeded to its
-- dependents.
-- Locks: ACCESS EXCLUSIVE on task for the moment in which the column is added (no table is rewritten), then SHARE
-- while the index is built: writes wait, reads go on. The index holds waiting tasks only, so it is empty at first.

-- The tasks of the same partition that must have succeeded before this one starts: `<queue> <key>` each (a queue's
-- name has no blank). A node checks them while the task is `waiting`, and `wake_at` is then the time of the next
-- check.
ALTER TABLE duetime.task ADD COLUMN depends_on text[];

-- The dependents of a key. The index has no pending list: a task that succeeded must find its dependents at once.
CREATE INDEX task_depends ON duetime.task USING gin (depends_on) WITH (fastupdate = off) WHERE state = 'waiting';

-- The state of the newest task with that name in that partition. That is an unfinished task if there is one,
-- otherwise the newest version, and of that version the task that finished last. NULL: there is none, or it was
-- dropped after its time.
CREATE FUNCTION duetime.standing_of(p_name text, p_partition_key text) RETURNS duetime.task_state
LANGUAGE sql STABLE AS $$
    SELECT coalesce(
        (SELECT t.state
           FROM duetime.task AS t
          WHERE t.queue = split_part(p_name, ' ', 1) AND t.key = substr(p_name, strpos(p_name, ' ') + 1)
            AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '')
          ORDER BY t.version DESC
          LIMIT 1),
        (SELECT a.state
           FROM duetime.archive AS a
          WHERE a.queue = split_part(p_name, ' ', 1) AND a.key = substr(p_name, strpos(p_name, ' ') + 1)
            AND a.partition_key IS NOT DISTINCT FROM p_partition_key
          ORDER BY a.version DESC, a.finished_at DESC
          LIMIT 1))
$$;

-- Checks whether a task with that key would in the end wait for itself, by following what its dependencies wait for.
-- `cycle`: it would. `deep`: more than 10,000 tasks stand before it, and the search stopped there. NULL: it would
-- not. The partition's lock (lock_partitions) keeps two tasks that are submitted at one moment from closing a circle
-- unseen.
CREATE FUNCTION duetime.depends_on_itself(p_queue text, p_partition_key text, p_key text, p_depends_on text[]) RETURNS text
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
                  AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '')
                ORDER BY t.version DESC
                LIMIT 1) AS newest
    ), looked AS (
        SELECT name FROM before LIMIT 10001
    )
    SELECT CASE WHEN bool_or(name = p_queue || ' ' || p_key) THEN 'cycle' WHEN count(*) > 10000 THEN 'deep' END FROM looked
$$;

-- Locks, in one order, the partitions in which a task is to wait for others, so that two callers never wait for each
-- other. A caller runs it once for a batch, before it locks any key.
CREATE FUNCTION duetime.lock_partitions(p_partition_keys text[], p_depends_on text[]) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT count(*)
      FROM (SELECT pg_advisory_xact_lock(partition.number)
              FROM (SELECT DISTINCT hashtextextended(coalesce(f.partition_key, ''), 5) AS number
                      FROM unnest(p_partition_keys, p_depends_on) AS f (partition_key, depends_on)
                     WHERE f.depends_on IS NOT NULL
                     ORDER BY number
                    OFFSET 0) AS partition
            OFFSET 0) AS locked                                          -- takes each lock, though no query reads it
$$;

-- The task with that id, wherever it is. The function probes the archive partition by partition, one probe each.
CREATE FUNCTION duetime.task_sent(p_id uuid)
RETURNS TABLE (id uuid, state duetime.task_state, due_at timestamptz, created_at timestamptz, version bigint)
LANGUAGE sql STABLE AS $$
    SELECT t.id, t.state, t.due_at, t.created_at, t.version FROM duetime.task AS t WHERE t.id = p_id
    UNION ALL
    SELECT a.id, a.state, a.due_at, a.created_at, a.version
      FROM (SELECT to_date(right(c.relname, 8), 'YYYYMMDD') AS drop_on
              FROM pg_inherits AS i
              JOIN pg_class AS c ON c.oid = i.inhrelid
             WHERE i.inhparent = 'duetime.archive'::regclass AND NOT i.inhdetachpending) AS day
     CROSS JOIN LATERAL (SELECT * FROM duetime.archive AS a WHERE a.drop_on = day.drop_on AND a.id = p_id LIMIT 1) AS a
$$;

-- The finished task that decides about a new one with that key. It is the task with the id `p_id`, or else the newest
-- version that ended after `p_since` and succeeded or died; with `p_versions`, however it ended. The function reads a
-- bounded number of rows, however often the key was used: those that ended last, or, when they are many, from the
-- newest version on.
CREATE FUNCTION duetime.key_finished(
    p_queue text, p_partition_key text, p_key text, p_id uuid, p_versions boolean, p_since timestamptz)
RETURNS TABLE (id uuid, state duetime.task_state, due_at timestamptz, created_at timestamptz, version bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM duetime.archive AS a
                    WHERE a.queue = p_queue AND a.key = p_key AND coalesce(a.partition_key, '') = coalesce(p_partition_key, '')) THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT s.id, s.state, s.due_at, s.created_at, s.version FROM duetime.task_sent(p_id) AS s WHERE s.state >= 'succeeded';
    IF FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH recent AS MATERIALIZED (
        SELECT a.*
          FROM (VALUES (true), (false)) AS c (holds)
         CROSS JOIN LATERAL (
               SELECT a.id, a.state, a.due_at, a.created_at, a.version
                 FROM duetime.archive AS a
                WHERE a.queue = p_queue AND a.key = p_key AND coalesce(a.partition_key, '') = coalesce(p_partition_key, '')
                  AND (a.state IN ('succeeded', 'dead')) = c.holds AND a.finished_at > p_since
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
                AND a.finished_at > p_since AND (p_versions OR a.state IN ('succeeded', 'dead'))
              ORDER BY a.version DESC, a.created_at DESC
              LIMIT 1)) AS newest
     ORDER BY newest.version DESC, newest.created_at DESC
     LIMIT 1;
END
$$;

-- Takes in one task by the rules of the function that it replaces (0002_add_task_put.sql). A task may wait for others
-- too: then it begins as `waiting`. A task without a key comes this way when it waits.
-- More outcomes: `cycle` and `deep`, see depends_on_itself; `busy`: another transaction holds a task with this key,
-- and the function did nothing.
-- The function writes nothing outside of the time window that the sender gave: after `p_after`, before `p_until`
-- (NULL: no bound). A sending that was held up until then must not overwrite a later one.
DROP FUNCTION duetime.task_put(
    uuid, integer, text, timestamptz, boolean, smallint, bytea, text, jsonb, text, integer, bigint, jsonb, timestamptz, text, bigint,
    text, interval, bigint);
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
