-- Reads the turns of queues after a place, in the order of their revisions.
-- $1 revision and $2 queue of the place; $3 the most rows.
SELECT q.queue, q.revision, q.placed, q.reports_since
  FROM duetime.queue_turn AS q
 WHERE (q.revision, q.queue) > ($1::bigint, $2::text)
 ORDER BY q.revision, q.queue
 LIMIT $3
