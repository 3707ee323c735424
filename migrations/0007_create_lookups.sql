-- Creates the functions that find the task of a key or of an id, live or finished, and follow dependencies.
-- Locks: none that another session waits for; functions only.

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
