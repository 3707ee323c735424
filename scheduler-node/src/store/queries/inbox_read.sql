-- What waits in the inbox, oldest first: rows for the shards of this node, and any that nobody has collected for a while.
-- A row whose database is not there is left out, so that it does not stand in the way of the others.
-- Guard: none is needed. A row that is read twice is moved once (task_collect, task_collect_keyed).
-- $1 this node's shards, $2 shards whose database is there, $3 how long a row is left to its owner, $4 at the most so many.
SELECT i.id, i.request::text AS request, i.submitted_at
  FROM duetime.inbox AS i
 WHERE i.error IS NULL
   AND i.shard = ANY($2::int[])
   AND (i.shard = ANY($1::int[]) OR i.submitted_at < clock_timestamp() - $3::interval)
 ORDER BY i.submitted_at
 LIMIT $4
