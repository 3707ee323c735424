-- Cancels unclaimed tasks: task_cancel.sql for a batch.
-- Guard: as in task_cancel.sql, `waiting`, `scheduled` or `ready`. The statement skips a row that another transaction
-- locks, so it and a claim never wait for each other in a circle. The caller cancels the skipped tasks one by one.
-- $1 ids; $2 ms for which a cancelled task is kept, except in the queues $3, which keep it for $4 ms ($3 and
-- $4 pairwise). See task_expire.sql for the map.
-- It first runs without the clause for ends that exist. If there is one, it fails and changes nothing, and runs again
-- as it stands here (store/conflict.rs).
-- Returns the cancelled tasks.
WITH free AS MATERIALIZED (
    SELECT t.id
      FROM unnest($1::uuid[]) AS asked (id)
      JOIN duetime.task AS t ON t.id = asked.id
     WHERE t.state::text IN ('waiting', 'scheduled', 'ready')     -- cast: see task_claim
       FOR UPDATE OF t SKIP LOCKED
), gone AS (
    DELETE FROM duetime.task AS t
     USING free
     WHERE t.id = free.id AND t.state::text IN ('waiting', 'scheduled', 'ready')
    RETURNING t.*
), kept AS (
INSERT INTO duetime.archive (
    id, shard, queue, state, wake_at, due_at, expires_at, priority, attempt, attempts_base, max_attempts, timeout_ms, retry,
    payload, content_type, headers, key, partition_key, version, claim_epoch, claimed_at, redeliveries, delivered_at,
    progress, worker, history, created_at, envelope, finished_at, drop_on)
SELECT id, shard, queue, 'cancelled', wake_at, due_at, expires_at, priority, attempt, attempts_base, max_attempts, timeout_ms, retry,
       payload, content_type, headers, key, partition_key, version, claim_epoch, claimed_at, redeliveries, delivered_at,
       progress, worker, history, created_at, envelope, clock_timestamp(),
       ((clock_timestamp() + coalesce(
           ((SELECT jsonb_object($3::text[], $4::bigint[]::text[])) ->> gone.queue)::bigint, $2    -- built once
        ) * interval '1 ms') AT TIME ZONE 'UTC')::date + 1
  FROM gone
    ON CONFLICT (drop_on, id) DO NOTHING                            -- an earlier end stays
)
SELECT id, queue, attempt FROM gone
