-- A failed attempt with tries left: scheduled again, at its retry time.
-- Guard: this attempt, and it has been handed over or may have been. A deadline ($5) ends only what has still not been heard of.
-- $1 ids, $2 attempts, $3 retry times, $4 history entries, $5 at a deadline, pairwise. Returns the ids that changed.
UPDATE duetime.task AS t
   SET state = 'scheduled', wake_at = f.retry_at, due_at = f.retry_at, redeliveries = 0, progress = NULL, worker = NULL,
       delivered_at = NULL, history = coalesce(t.history, '[]') || f.entry::jsonb
  FROM unnest($1::uuid[], $2::int[], $3::timestamptz[], $4::text[], $5::boolean[]) AS f (id, attempt, retry_at, entry, at_deadline)
 WHERE t.id = f.id AND t.attempt = f.attempt AND t.state::text IN ('dispatching', 'delivered', 'running')     -- as text: see task_claim
   AND (NOT f.at_deadline OR t.wake_at <= clock_timestamp())
RETURNING t.id
