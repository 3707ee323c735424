-- Keeps statements off the archive where they do not read it. A statement that names the archive opens and locks each
-- of its partitions, also where a condition skips them. So does one that calls a function in SQL which PostgreSQL
-- inlines. The functions below are in PL/pgSQL: they open the archive only when they read it, and keep their plans for
-- the session. PostgreSQL plans a function in SQL anew in each transaction, which takes 4 ms for all partitions.
-- Locks: none that another session waits for; functions only.

-- Those of the tasks that have finished. Costs one probe of the primary key in each partition for each task.
CREATE FUNCTION duetime.finished_among(p_ids uuid[]) RETURNS SETOF uuid LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    WITH day AS MATERIALIZED (
        SELECT to_date(right(c.relname, 8), 'YYYYMMDD') AS drop_on
          FROM pg_inherits AS i
          JOIN pg_class AS c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'duetime.archive'::regclass AND NOT i.inhdetachpending
    )
    SELECT asked.id
      FROM unnest(p_ids) AS asked (id)
     WHERE EXISTS (
           SELECT
             FROM day
            CROSS JOIN LATERAL (SELECT FROM duetime.archive AS a WHERE a.drop_on = day.drop_on AND a.id = asked.id LIMIT 1) AS found);
END
$$;

-- Stood in 0007_create_lookups.sql, which describes it.
CREATE OR REPLACE FUNCTION duetime.task_sent(p_id uuid)
RETURNS TABLE (id uuid, state duetime.task_state, due_at timestamptz, created_at timestamptz, version bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT t.id, t.state, t.due_at, t.created_at, t.version FROM duetime.task AS t WHERE t.id = p_id
    UNION ALL
    SELECT a.id, a.state, a.due_at, a.created_at, a.version
      FROM (SELECT to_date(right(c.relname, 8), 'YYYYMMDD') AS drop_on
              FROM pg_inherits AS i
              JOIN pg_class AS c ON c.oid = i.inhrelid
             WHERE i.inhparent = 'duetime.archive'::regclass AND NOT i.inhdetachpending) AS day
     CROSS JOIN LATERAL (SELECT * FROM duetime.archive AS a WHERE a.drop_on = day.drop_on AND a.id = p_id LIMIT 1) AS a;
END
$$;

-- Stood in 0014_place_submits.sql, which describes it.
CREATE OR REPLACE FUNCTION duetime.is_here(p_shard integer) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN NOT EXISTS (SELECT FROM duetime.shard AS s WHERE s.id = p_shard AND s.status IN ('gone', 'arriving'));
END
$$;

-- Stood in 0014_place_submits.sql. The state of the newest task with that name in that partition. That is an
-- unfinished task if there is one, otherwise the finished one that was created last, whatever its version. One that
-- was retried by hand, or whose content was replaced or changed after an attempt, counts from its due time on. An
-- attempt in flight goes on beside a newer version, which may finish first: then that version is the newest. NULL:
-- there is none, or it was dropped after its time. The function reads the 100 that finished last, of those that hold
-- the key and of the others (see key_finished). A task finishes after it was created. So the newest is among them,
-- unless 100 older tasks with its name finished after it.
CREATE OR REPLACE FUNCTION duetime.standing_of(p_name text, p_partition_key text) RETURNS duetime.task_state
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_queue text := split_part(p_name, ' ', 1);
    v_key text := substr(p_name, strpos(p_name, ' ') + 1);
    v_state duetime.task_state;
    v_version bigint;
    v_created_at timestamptz;
    v_newer duetime.task_state;
BEGIN
    SELECT t.state, t.version, t.created_at INTO v_state, v_version, v_created_at
      FROM duetime.task AS t
     WHERE t.queue = v_queue AND t.key = v_key
       AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '') AND duetime.is_here(t.shard)
     ORDER BY t.version DESC
     LIMIT 1;
    IF NOT FOUND THEN
        SELECT newest.state INTO v_state
          FROM (SELECT ended.*
                  FROM (VALUES (true), (false)) AS c (holds)
                 CROSS JOIN LATERAL (
                       SELECT a.state, a.shard, a.finished_at,
                              CASE WHEN a.attempts_base > 0 THEN greatest(a.created_at, least(a.due_at, a.finished_at))
                                   ELSE a.created_at END AS began_at
                         FROM duetime.archive AS a
                        WHERE a.queue = v_queue AND a.key = v_key
                          AND coalesce(a.partition_key, '') = coalesce(p_partition_key, '')
                          AND (a.state IN ('succeeded', 'dead')) = c.holds
                        ORDER BY a.finished_at DESC
                        LIMIT 100) AS ended
                 ORDER BY ended.began_at DESC, ended.finished_at DESC
                OFFSET 0) AS newest                             -- in this order, so that is_here is asked once
         WHERE duetime.is_here(newest.shard)
         LIMIT 1;
    ELSIF v_state IN ('dispatching', 'delivered', 'running') THEN
        SELECT a.state INTO v_newer
          FROM duetime.archive AS a
         WHERE a.queue = v_queue AND a.key = v_key
           AND coalesce(a.partition_key, '') = coalesce(p_partition_key, '')
           -- Where the key was free again, a higher version may be older.
           AND a.version > v_version AND a.created_at > v_created_at
           AND duetime.is_here(a.shard)
         ORDER BY a.version DESC, a.created_at DESC
         LIMIT 1;
        v_state := coalesce(v_newer, v_state);
    END IF;
    RETURN v_state;
END
$$;

-- Stood in 0006_create_guards.sql, which describes it.
CREATE OR REPLACE FUNCTION duetime.lock_partitions(p_partition_keys text[], p_depends_on text[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (
        SELECT count(*)
          FROM (SELECT pg_advisory_xact_lock(partition.number)
                  FROM (SELECT DISTINCT hashtextextended(coalesce(f.partition_key, ''), 5) AS number
                          FROM unnest(p_partition_keys, p_depends_on) AS f (partition_key, depends_on)
                         WHERE f.depends_on IS NOT NULL
                         ORDER BY number
                        OFFSET 0) AS partition
                OFFSET 0) AS locked);                                    -- takes each lock, though no query reads it
END
$$;

-- The day on which the archive drops a task that ends at p_ended_at and is kept for p_keep_ms. A queue that has just
-- got a longer retention may need a day that has no partition yet. The latest day before it that has one takes its
-- place, because a transaction of an application cannot wait for a node that makes the partition.
CREATE FUNCTION duetime.drop_day(p_ended_at timestamptz, p_keep_ms bigint) RETURNS date LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_first date := (p_ended_at AT TIME ZONE interval '0')::date + 1;
    v_wanted date := ((p_ended_at + p_keep_ms * interval '1 ms') AT TIME ZONE interval '0')::date + 1;
    v_last text := (
        SELECT max(right(c.relname, 8))
          FROM pg_inherits AS i
          JOIN pg_class AS c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'duetime.archive'::regclass AND NOT i.inhdetachpending AND c.relname ~ '^archive_[0-9]{8}$'
           AND right(c.relname, 8) BETWEEN to_char(v_first, 'YYYYMMDD') AND to_char(v_wanted, 'YYYYMMDD'));
BEGIN
    RETURN coalesce(to_date(v_last, 'YYYYMMDD'), v_wanted);
END
$$;
