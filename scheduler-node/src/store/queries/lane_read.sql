-- How much a queue has waiting for room in these shards, priority by priority, and how much is out that its limit counts.
-- Stops counting at $3 of a priority and at $4 out; touches nobody else's rows. A priority nobody waits in costs one probe, not one a
-- shard; the others cost one a shard, and a count where there is something.
-- $1 queue, $2 shards, $3 at most so many of a priority, $4 at most so many out (0: nobody asks).
-- Returns a row for each priority, in their order, with the shards that have any of it (NULL or empty: none has).
SELECT l.priority, r.ready, has.shards,
       (SELECT count(*)
          FROM (SELECT FROM duetime.task
                 WHERE queue = $1 AND counted AND state IN ('dispatching', 'delivered', 'running')
                 LIMIT $4) AS counted) AS out
  FROM generate_series(1, 5) AS l (priority)
 CROSS JOIN LATERAL (
       SELECT CASE WHEN EXISTS (SELECT FROM duetime.task WHERE queue = $1 AND priority = l.priority::smallint AND state = 'ready')
                   THEN ARRAY(
                       SELECT s.id
                         FROM unnest($2::int[]) AS s (id)
                        CROSS JOIN LATERAL (                         -- not EXISTS, which may be answered by reading all that waits
                              SELECT
                                FROM duetime.task
                               WHERE queue = $1 AND priority = l.priority::smallint AND shard = s.id AND state = 'ready'
                               LIMIT 1) AS one) END AS shards
       OFFSET 0) AS has                                              -- found once, not wherever it is named
 CROSS JOIN LATERAL (
       SELECT count(*) AS ready
         FROM (SELECT
                 FROM unnest(has.shards) AS s (id)
                CROSS JOIN LATERAL (
                      SELECT
                        FROM duetime.task
                       WHERE queue = $1 AND priority = l.priority::smallint AND shard = s.id AND state = 'ready'
                       LIMIT $3) AS t
                LIMIT $3) AS bounded) AS r
 ORDER BY l.priority
