-- Reads the keys of the tasks that wake next, shard by shard, in the order of their wake times.
-- The list of shards drives the plan, so that each shard is one range of task_wake; `ready` rows are not in that
-- index.
-- $1 shards; $2 from, $3 until (both inclusive); $4 the limit of rows a shard. A shard that returns $4 rows may have
-- more.
SELECT t.id, t.wake_at, t.state::text AS state, t.claim_epoch
  FROM unnest($1::int[]) AS s (id)
 CROSS JOIN LATERAL (
       SELECT id, wake_at, state, claim_epoch
         FROM duetime.task
        WHERE shard = s.id AND state <> 'ready' AND wake_at >= $2 AND wake_at <= $3
        ORDER BY wake_at
        LIMIT $4) AS t
