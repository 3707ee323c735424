-- What task_expire would take: to find the one row among them that the database refuses.
-- $1 shards, $2 at most so many, $3 ids to leave out.
SELECT id
  FROM duetime.task
 WHERE expires_at <= clock_timestamp() AND state IN ('waiting', 'scheduled', 'ready') AND shard = ANY($1::int[])
   AND id <> ALL($3::uuid[])
 ORDER BY expires_at
 LIMIT $2
