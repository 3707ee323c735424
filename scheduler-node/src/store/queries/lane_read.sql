-- How much a queue has waiting for room in these shards, priority by priority, and how much is out that its limit counts.
-- Stops counting at $3 of a priority and at $4 out; touches nobody else's rows.
-- $1 queue, $2 shards, $3 at most so many of a priority, $4 at most so many out (0: nobody asks).
-- Returns a row for each priority, in their order, with the shards that have any of it (NULL: none has).
SELECT l.priority, r.ready,
       CASE WHEN r.ready > 0 THEN ARRAY(
           SELECT s.id
             FROM unnest($2::int[]) AS s (id)
            WHERE EXISTS (SELECT
                            FROM duetime.task
                           WHERE queue = $1 AND priority = l.priority::smallint AND shard = s.id AND state = 'ready')) END AS shards,
       (SELECT count(*)
          FROM (SELECT FROM duetime.task
                 WHERE queue = $1 AND counted AND state IN ('dispatching', 'delivered', 'running')
                 LIMIT $4) AS counted) AS out
  FROM generate_series(1, 5) AS l (priority)
 CROSS JOIN LATERAL (
       SELECT count(*) AS ready
         FROM (SELECT
                 FROM unnest($2::int[]) AS s (id)
                CROSS JOIN LATERAL (
                      SELECT
                        FROM duetime.task
                       WHERE queue = $1 AND priority = l.priority::smallint AND shard = s.id AND state = 'ready'
                       LIMIT $3) AS t
                LIMIT $3) AS bounded) AS r
 ORDER BY l.priority
