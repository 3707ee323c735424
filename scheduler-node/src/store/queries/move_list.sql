-- Lists the moves that have not ended, in the order of their shards. Only the first database keeps them. One row a
-- shard at most.
SELECT shard, source, target, step, called_off_at, requested_by, requested_at, started_at, cut_began_at, cut_ended_at,
       page::text AS page, rows_total, rows_copied, bytes_copied, node, problem, updated_at
  FROM duetime.move
 ORDER BY shard
