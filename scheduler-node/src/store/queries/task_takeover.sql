-- Finds the tasks that the previous owner left claimed; the new owner rescues them at once, so their order does not
-- matter. The result is complete, because an acquire waits for claims in flight and this statement is sent after it.
-- Every claim sets `wake_at` at most $4 ahead, so the range ends there. Behind it are all tasks that are due later, so
-- it does not reach for those that were claimed before the database's clock was set back: they wake by themselves.
-- It begins $5 ago. Earlier rows are overdue, perhaps millions. The preloader reads them, and the claimed ones among
-- them.
-- The statement's own time bounds the search in the index; clock_timestamp() is volatile and cannot.
-- $1 shards and $2 their new epochs (pairwise); $3 the limit of rows a shard; $4 the longest look-again time; $5 how
-- far back it looks.
SELECT t.id
  FROM unnest($1::int[], $2::bigint[]) AS s (id, epoch)
 CROSS JOIN LATERAL (
       SELECT id
         FROM duetime.task
        WHERE shard = s.id AND state <> 'ready'
          AND wake_at >= statement_timestamp() - $5::interval AND wake_at <= statement_timestamp() + $4::interval
          AND state = 'dispatching' AND claim_epoch < s.epoch
        LIMIT $3) AS t
