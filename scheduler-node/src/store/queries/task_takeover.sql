-- Finds the tasks that the previous owner left claimed; the new owner rescues them at once. The result is complete,
-- because an acquire waits for claims in flight.
-- Every claim sets `wake_at` at most $4 ahead, so the range ends there. Behind it are all tasks that are due later, so
-- it does not reach for those that were claimed before the database's clock was set back: they wake by themselves.
-- $1 shards and $2 their new epochs (pairwise); $3 the limit of rows a shard; $4 the longest look-again time.
SELECT t.id
  FROM unnest($1::int[], $2::bigint[]) AS s (id, epoch)
 CROSS JOIN LATERAL (
       SELECT id
         FROM duetime.task
        WHERE shard = s.id AND state <> 'ready' AND wake_at <= clock_timestamp() + $4
          AND state = 'dispatching' AND claim_epoch < s.epoch
        ORDER BY wake_at
        LIMIT $3) AS t
