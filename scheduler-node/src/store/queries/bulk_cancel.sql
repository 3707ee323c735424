-- Cancels tasks that nobody has claimed: task_cancel.sql for many.
-- Guard: as there, waiting, scheduled or ready. A row that somebody holds is passed over instead of waited for, so that this waits
-- for no claim and no claim for it in a circle; the caller asks for those one by one.
-- $1 ids, $2 keep for so many ms, except in the queues $3, kept for $4 ms (pairwise). Returns those that were cancelled.
WITH free AS MATERIALIZED (
    SELECT t.id
      FROM unnest($1::uuid[]) AS asked (id)
      JOIN duetime.task AS t ON t.id = asked.id
     WHERE t.state::text IN ('waiting', 'scheduled', 'ready')     -- as text: see task_claim
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
           (SELECT keep.ms FROM unnest($3::text[], $4::bigint[]) AS keep (queue, ms) WHERE keep.queue = gone.queue), $2
        ) * interval '1 ms') AT TIME ZONE 'UTC')::date + 1
  FROM gone
    ON CONFLICT (drop_on, id) DO NOTHING                            -- it ended before; that end stays
)
SELECT id, queue, attempt FROM gone
