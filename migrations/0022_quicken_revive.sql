-- Makes a retry of a dead task with a key read the finished tasks of its own partition only.
-- Makes a retry leave a task alone that its queue would place on another shard by now.
-- Locks: none that another session waits for; a function.

-- Stood in 0014_place_submits.sql; 0008_create_keyed_writes.sql describes it. The partition key is compared in the form
-- of the index archive_key_version. A queue whose placement has changed counts, orders and finds its tasks on their new
-- shards, which may be in another database. So a task of an old one does not come back.
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
    -- A queue without such a turn has never been placed anew. Without a shard to which the task is bound, any will do.
    IF EXISTS (SELECT FROM duetime.queue_turn AS q WHERE q.queue = v_dead.queue AND q.placed > 0)
       AND v_dead.shard <> duetime.shard_of(
           v_dead.queue, duetime.queue_placement(v_dead.queue) = 'single', v_dead.partition_key, v_dead.key,
           (SELECT m.shard_count FROM duetime.meta AS m)) THEN
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
                         AND coalesce(a.partition_key, '') = coalesce(v_dead.partition_key, '') AND duetime.is_here(a.shard)) THEN
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
