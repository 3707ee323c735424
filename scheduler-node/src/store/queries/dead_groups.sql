-- The dead tasks, grouped by queue and by what was said of the last attempt, the largest group first.
-- Looks at no more than $1 rows, those due last of each queue, along archive_unsuccessful: `complete` in every row says
-- whether that was all of every queue. $2 at most so many groups, of at most
-- $3 queues. The text of a group is cut to 200 characters.
WITH RECURSIVE hop (queue, nth) AS (
    (SELECT queue, 1 FROM duetime.archive WHERE state <> 'succeeded' ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT a.queue FROM duetime.archive AS a WHERE a.queue > hop.queue AND a.state <> 'succeeded' ORDER BY a.queue LIMIT 1), hop.nth + 1
      FROM hop
     WHERE hop.queue IS NOT NULL AND hop.nth < $3::int
), share AS MATERIALIZED (
    SELECT greatest(1, $1::bigint / greatest(1, count(queue))) AS look FROM hop
), seen AS MATERIALIZED (
    SELECT hop.queue, newest.*
      FROM hop
     CROSS JOIN share
     CROSS JOIN LATERAL (
           SELECT a.state, a.due_at, a.finished_at, a.id, left(coalesce(a.status_msg, a.history -> -1 ->> 'error', ''), 200) AS error,
                  row_number() OVER (ORDER BY a.due_at DESC, a.id DESC) = share.look AS looked_up_to
             FROM duetime.archive AS a
            WHERE a.queue = hop.queue AND a.state <> 'succeeded'
            ORDER BY a.due_at DESC, a.id DESC
            LIMIT share.look) AS newest
     WHERE hop.queue IS NOT NULL
)
SELECT queue, error, count(*) AS tasks, max(finished_at) AS newest_at, min(finished_at) AS oldest_at,
       (SELECT NOT bool_or(looked_up_to) FROM seen) AND (SELECT count(queue) < $3 FROM hop) AS complete
  FROM seen
 WHERE state = 'dead'
 GROUP BY queue, error
 ORDER BY tasks DESC, newest_at DESC
 LIMIT $2
