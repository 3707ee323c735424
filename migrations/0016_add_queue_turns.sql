-- Locks: none that anyone waits for; everything here is new.

-- The revision at which each queue's policy last changed, in every database of the cluster. A claim presents the revision of the queues that
-- its node knows, and starts no task of a queue that has turned since. A queue without a row has not turned.
CREATE TABLE duetime.queue_turn (
    queue     text PRIMARY KEY,
    revision  bigint NOT NULL
);
CREATE INDEX queue_turn_revision ON duetime.queue_turn (revision);

-- Waits for the statements in flight that lock a fence (claims, picks, rescues, inserts), and keeps new ones waiting until the caller
-- commits. A statement that waited takes its snapshot afterwards, so it sees what the caller wrote. Lock requests queue up in their
-- order, so a stream of claims cannot starve the caller, as it can starve one that waits for a row's shared lock.
-- The short lock_timeout bounds how long everybody behind the caller waits when a claim in flight hangs.
CREATE FUNCTION duetime.await_claims() RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
BEGIN
    LOCK TABLE duetime.shard IN EXCLUSIVE MODE;
    RETURN true;
END
$$;

-- Takes the fences of some shards, as shard_acquire.sql does, without waiting for long. `p_in_turn`: as await_claims, so that claims which
-- overlap cannot starve it; otherwise a claim that hangs is in the way of its own shard only.
CREATE FUNCTION duetime.acquire_contested(p_shards integer[], p_owner text, p_incarnation uuid, p_in_turn boolean)
RETURNS TABLE (id integer, epoch bigint) LANGUAGE plpgsql SET lock_timeout = '250ms' AS $$
#variable_conflict use_column
BEGIN
    IF p_in_turn THEN
        LOCK TABLE duetime.shard IN EXCLUSIVE MODE;
    END IF;
    RETURN QUERY
    UPDATE duetime.shard AS s
       SET epoch = s.epoch + 1, owner = p_owner, incarnation = p_incarnation, acquired_at = clock_timestamp()
     WHERE s.id = ANY(p_shards)
    RETURNING s.id, s.epoch;
END
$$;
