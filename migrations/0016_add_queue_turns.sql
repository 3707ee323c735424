-- Locks: none that another session waits for; everything here is new.

-- The revision at which each queue last turned, which means that its policy changed. Every database of the cluster
-- has this table. A claim presents the revision of the queues that its node knows, and starts no task of a queue that
-- has turned since. A queue without a row has not turned.
CREATE TABLE duetime.queue_turn (
    queue     text PRIMARY KEY,
    revision  bigint NOT NULL
);
CREATE INDEX queue_turn_revision ON duetime.queue_turn (revision);

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
