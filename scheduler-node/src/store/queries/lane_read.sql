-- Counts, for each priority, a queue's tasks that wait for room in these shards, and its tasks in flight that count
-- towards its limit.
-- Stops counting at $3 tasks of a priority and at $4 tasks in flight, and reads no rows of other queues. A priority
-- without ready tasks costs one probe, not one a shard. Any other priority costs one probe a shard, and a count where
-- the shard has ready tasks.
-- Tasks that wait and are due before $5 are left out. Their index entries are passed without a look at their rows, or
-- not at all in the lane without a key. With such a due time the probe of the whole priority is left out: it would pass
-- them in all shards.
-- $1 queue; $2 shards; $3 the limit of counted tasks of a priority; $4 the limit of counted tasks in flight (0: the
-- caller does not need their number); $5 the first due time (NULL: all).
-- Returns a row for each priority, in their order, with the shards that have ready tasks of it (NULL or empty: none
-- has).
SELECT l.priority, r.ready, has.shards,
       (SELECT count(*)
          FROM (SELECT FROM duetime.task
                 WHERE queue = $1 AND counted AND state IN ('dispatching', 'delivered', 'running')
                 LIMIT $4) AS counted) AS out
  FROM generate_series(1, 5) AS l (priority)
 CROSS JOIN LATERAL (
       SELECT CASE WHEN $5::timestamptz IS NOT NULL OR EXISTS (SELECT FROM duetime.task WHERE queue = $1 AND priority = l.priority::smallint AND state = 'ready')
                   THEN ARRAY(
                       SELECT s.id
                         FROM unnest($2::int[]) AS s (id)
                        CROSS JOIN LATERAL (                         -- EXISTS might read all ready rows
                              SELECT
                                FROM duetime.task
                               WHERE queue = $1 AND priority = l.priority::smallint AND shard = s.id AND state = 'ready'
                                 AND (coalesce('=' || partition_key, '-') COLLATE "C", due_at) >= ('-', coalesce($5, '-infinity')) AND due_at >= coalesce($5, '-infinity')
                               ORDER BY coalesce('=' || partition_key, '-') COLLATE "C", due_at
                               LIMIT 1) AS one) END AS shards
       OFFSET 0) AS has                                              -- evaluates it once, not at each use
 CROSS JOIN LATERAL (
       SELECT count(*) AS ready
         FROM (SELECT
                 FROM unnest(has.shards) AS s (id)
                CROSS JOIN LATERAL (
                      SELECT
                        FROM duetime.task
                       WHERE queue = $1 AND priority = l.priority::smallint AND shard = s.id AND state = 'ready'
                         AND (coalesce('=' || partition_key, '-') COLLATE "C", due_at) >= ('-', coalesce($5, '-infinity')) AND due_at >= coalesce($5, '-infinity')
                       ORDER BY coalesce('=' || partition_key, '-') COLLATE "C", due_at
                       LIMIT $3) AS t
                LIMIT $3) AS bounded) AS r
 ORDER BY l.priority
