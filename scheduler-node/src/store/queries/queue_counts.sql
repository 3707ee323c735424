-- Counts the tasks of each of the queues $1 by state, among the first $2 tasks of the queue by due time.
-- A queue whose counts add up to $2 may have more tasks of every state.
SELECT q.name AS queue, c.state::text AS state, c.tasks
  FROM unnest($1::text[]) AS q (name)
 CROSS JOIN LATERAL (
       SELECT state, count(*) AS tasks
         FROM (SELECT state FROM duetime.task WHERE queue = q.name ORDER BY due_at, id LIMIT $2) AS first
        GROUP BY state) AS c
