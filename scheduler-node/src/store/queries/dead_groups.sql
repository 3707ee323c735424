-- Groups the dead tasks by queue and by the error of the last attempt, the largest group first.
-- Reads at most $1 rows along archive_unsuccessful, of each queue those with the latest due times. `complete` is the
-- same in every row: whether the statement read all rows of all queues, or of those in $5. One row without a queue: it
-- read no dead task.
-- $2 the limit of groups; $3 the limit of queues without $5; $4 shards to leave out, because their place is another
-- database; $5 the queues to read; NULL: all. The text of a group is cut to 200 characters.
WITH RECURSIVE hop (queue, nth) AS (
    (SELECT queue, 1 FROM duetime.archive WHERE $5::text[] IS NULL AND state <> 'succeeded' ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT a.queue FROM duetime.archive AS a WHERE a.queue > hop.queue AND a.state <> 'succeeded' ORDER BY a.queue LIMIT 1), hop.nth + 1
      FROM hop
     WHERE hop.queue IS NOT NULL AND hop.nth < $3::int
), named AS MATERIALIZED (
    SELECT queue FROM hop WHERE queue IS NOT NULL
    UNION ALL
    SELECT asked.queue
      FROM unnest($5::text[]) AS asked (queue)
     CROSS JOIN LATERAL (                                           -- EXISTS, or LIMIT alone, might read all rows
           SELECT
             FROM duetime.archive AS a
            WHERE a.queue = asked.queue AND a.state <> 'succeeded'
            ORDER BY a.due_at DESC, a.id DESC
            LIMIT 1) AS one
), share AS MATERIALIZED (
    SELECT greatest(1, $1::bigint / greatest(1, count(*))) AS look FROM named
), seen AS MATERIALIZED (
    SELECT named.queue, newest.*
      FROM named
     CROSS JOIN share
     CROSS JOIN LATERAL (
           SELECT a.state, a.shard, a.due_at, a.finished_at, a.id, left(coalesce(a.status_msg, a.history -> -1 ->> 'error', ''), 200) AS error,
                  row_number() OVER (ORDER BY a.due_at DESC, a.id DESC) = share.look AS looked_up_to
             FROM duetime.archive AS a
            WHERE a.queue = named.queue AND a.state <> 'succeeded'
            ORDER BY a.due_at DESC, a.id DESC
            LIMIT share.look) AS newest
)
SELECT looked.complete, g.queue, g.error, g.tasks, g.newest_at, g.oldest_at
  FROM (SELECT coalesce(NOT bool_or(looked_up_to), true) AND (SELECT count(queue) < $3 FROM hop) AS complete
          FROM seen) AS looked
  LEFT JOIN (SELECT queue, error, count(*) AS tasks, max(finished_at) AS newest_at, min(finished_at) AS oldest_at
               FROM seen
              WHERE state = 'dead' AND shard <> ALL($4::int[])
              GROUP BY queue, error
              ORDER BY tasks DESC, newest_at DESC
              LIMIT $2) AS g ON true
 ORDER BY g.tasks DESC, g.newest_at DESC
