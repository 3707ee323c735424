-- Counts the tasks of each of the queues $1 by state, among the first $2 tasks of the queue by due time.
-- $3 shards whose tasks are not counted, because their place is another database; `looked` counts them too.
-- A queue whose `looked` add up to $2 may have more tasks of every state.
SELECT q.name AS queue, c.state::text AS state, c.tasks, c.looked
  FROM unnest($1::text[]) AS q (name)
 CROSS JOIN LATERAL (
       SELECT state, count(*) FILTER (WHERE shard <> ALL($3::int[])) AS tasks, count(*) AS looked
         FROM (SELECT state, shard FROM duetime.task WHERE queue = q.name ORDER BY due_at, id LIMIT $2) AS first
        GROUP BY state) AS c
