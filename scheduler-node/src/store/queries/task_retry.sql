-- A failed attempt with tries left: scheduled again, at its retry time, one priority lower where that is asked for.
-- Guard: this attempt, it has been handed over or may have been, and it is not to stop. A deadline ($5) ends only what has still not been heard of.
-- $1 ids, $2 attempts, $3 retry times, $4 history entries, $5 at a deadline, $6 one priority lower, pairwise. Returns the ids that changed.
UPDATE duetime.task AS t
   SET state = 'scheduled', wake_at = f.retry_at, due_at = f.retry_at, redeliveries = 0, progress = NULL, worker = NULL,
       priority = CASE WHEN f.lower THEN least(5, t.priority + 1) ELSE t.priority END,
       delivered_at = NULL, history = coalesce(t.history, '[]') || f.entry::jsonb
  FROM unnest($1::uuid[], $2::int[], $3::timestamptz[], $4::text[], $5::boolean[], $6::boolean[])
       AS f (id, attempt, retry_at, entry, at_deadline, lower)
 WHERE t.id = f.id AND t.attempt = f.attempt AND t.state::text IN ('dispatching', 'delivered', 'running')     -- as text: see task_claim
   AND NOT t.stopping
   AND (NOT f.at_deadline OR t.wake_at <= clock_timestamp())
RETURNING t.id
