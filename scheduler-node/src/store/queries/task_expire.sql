-- Archives tasks of these shards as `expired` when their expiry has passed before a claim.
-- Guard: not claimed. The statement skips a row that another transaction locks until the next time.
-- $1 shards; $2 the limit of tasks; $3 ms for which an expired task is kept, except in the queues $4, which keep it
-- for $5 ms ($4 and $5 pairwise). A cluster may have very many of these, so the statement makes one map of them: no row
-- is compared with each.
-- $6 ids to leave alone; $7 the only ids to expire (NULL: any); $8 the expiry before which tasks are not looked at.
-- Returns the expired tasks, their queues and expiries.
-- The statement's own time bounds the search in the index; clock_timestamp() is volatile and cannot.
WITH late AS MATERIALIZED (
    SELECT id
      FROM duetime.task
     WHERE expires_at >= $8 AND expires_at <= statement_timestamp()
       AND state IN ('waiting', 'scheduled', 'ready') AND shard = ANY($1::int[])
       AND id <> ALL($6::uuid[]) AND ($7::uuid[] IS NULL OR id = ANY($7::uuid[]))
     ORDER BY expires_at
     LIMIT $2
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM duetime.task AS t USING late WHERE t.id = late.id RETURNING t.*
)
INSERT INTO duetime.archive (
    id, shard, queue, state, wake_at, due_at, expires_at, priority, attempt, attempts_base, max_attempts, timeout_ms, retry,
    payload, content_type, headers, key, partition_key, version, claim_epoch, claimed_at, redeliveries, delivered_at,
    progress, worker, history, created_at, envelope, finished_at, drop_on)
SELECT id, shard, queue, 'expired', wake_at, due_at, expires_at, priority, attempt, attempts_base, max_attempts, timeout_ms, retry,
       payload, content_type, headers, key, partition_key, version, claim_epoch, claimed_at, redeliveries, delivered_at,
       progress, worker, history, created_at, envelope, clock_timestamp(),
       ((clock_timestamp() + coalesce(
           ((SELECT jsonb_object($4::text[], $5::bigint[]::text[])) ->> gone.queue)::bigint, $3    -- built once
        ) * interval '1 ms') AT TIME ZONE 'UTC')::date + 1
  FROM gone
    ON CONFLICT (drop_on, id) DO NOTHING                            -- an earlier end stays
RETURNING id, queue, expires_at
