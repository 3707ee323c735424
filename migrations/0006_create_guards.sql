-- Creates the functions that guard a write: they keep it from coming late, and order it among concurrent writes.
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

-- Waits for the statements in flight that lock a fence (claims, picks, rescues, inserts), and keeps new ones waiting
-- until the caller commits. A statement that waited takes its snapshot afterwards, so it sees what the caller wrote.
-- Lock requests queue up in their order, so a stream of claims cannot starve the caller. It could starve a caller
-- that waits for a row's shared lock. The short lock_timeout bounds how long the sessions behind the caller wait when
-- a claim in flight hangs.
CREATE FUNCTION duetime.await_claims() RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
BEGIN
    LOCK TABLE duetime.shard IN EXCLUSIVE MODE;
    RETURN true;
END
$$;

-- Acquires the fences of some shards, as shard_acquire.sql does. It locks the table as await_claims does, so that
-- overlapping claims cannot starve it.
CREATE FUNCTION duetime.acquire_in_turn(p_shards integer[], p_owner text, p_incarnation uuid)
RETURNS TABLE (id integer, epoch bigint) LANGUAGE plpgsql SET lock_timeout = '250ms' AS $$
#variable_conflict use_column
BEGIN
    LOCK TABLE duetime.shard IN EXCLUSIVE MODE;
    RETURN QUERY
    UPDATE duetime.shard AS s
       SET epoch = s.epoch + 1, owner = p_owner, incarnation = p_incarnation, acquired_at = clock_timestamp()
     WHERE s.id = ANY(p_shards)
    RETURNING s.id, s.epoch;
END
$$;

-- Locks these tasks for the caller, unless another transaction holds one of them. A claim holds a task for some
-- milliseconds, an application for as long as it likes. The function waits half a second at the most in the whole
-- statement. True: the tasks that are still there are locked.
CREATE FUNCTION duetime.task_lock(p_ids uuid[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    LOOP
        IF NOT EXISTS (
            SELECT FROM duetime.task AS t
             WHERE t.id = ANY(p_ids)
               AND t.id NOT IN (SELECT l.id FROM duetime.task AS l WHERE l.id = ANY(p_ids) FOR UPDATE SKIP LOCKED)) THEN
            RETURN true;
        END IF;
        IF clock_timestamp() > statement_timestamp() + interval '500 ms' THEN
            RETURN false;
        END IF;
        PERFORM pg_sleep(0.01);
    END LOOP;
END
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
