-- Cancels an unclaimed task: moves it to the archive in one statement.
-- Guard: `waiting`, `scheduled` or `ready`. Claim and cancel meet on the row, and the second of them finds nothing.
-- Whether the task was ever claimed, the caller tells from the attempt, which never goes back.
-- $1 id; $2 ms for which the cancelled task is kept, except in the queues $3, which keep it for $4 ms ($3 and
-- $4 pairwise). See task_expire.sql for the map.
-- It first runs without the clause for ends that exist. If there is one, it fails and changes nothing, and runs again
-- as it stands here (store/conflict.rs).
-- Returns queue and attempt; no row: the guard did not hold.
WITH gone AS (
    DELETE FROM duetime.task AS t
     WHERE t.id = $1
       AND t.state IN ('waiting', 'scheduled', 'ready')
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
SELECT queue, attempt FROM gone
