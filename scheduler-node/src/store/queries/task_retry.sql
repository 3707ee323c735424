-- Schedules a task again, at its retry time, after a failed attempt with tries left; one priority lower where the
-- policy asks for that. The history keeps the newest 100 entries: each failure writes all of it again.
-- Guard: this attempt, it has been handed over or may have been, the task is not to stop, and its budget is not used
-- up: a newer version of it may have ended that meanwhile. A deadline ($5) ends
-- the attempt only if no sign of life has moved its `wake_at` meanwhile. The statement skips such a row if another
-- transaction locks it: see task_finish.
-- $1 ids; $2 attempts; $3 retry times; $4 history entries; $5 whether a deadline ends the attempt; $6 whether the
-- task becomes one priority lower (pairwise).
-- Returns the ids that changed.
WITH fact AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::int[], $3::timestamptz[], $4::text[], $5::boolean[], $6::boolean[])
        AS f (id, attempt, retry_at, entry, at_deadline, lower)
), free AS MATERIALIZED (
    SELECT t.id FROM fact AS f JOIN duetime.task AS t ON t.id = f.id WHERE f.at_deadline FOR NO KEY UPDATE OF t SKIP LOCKED
)
UPDATE duetime.task AS t
   SET state = 'scheduled', wake_at = f.retry_at, due_at = f.retry_at, redeliveries = 0, progress = NULL, worker = NULL,
       priority = CASE WHEN f.lower THEN least(5, t.priority + 1) ELSE t.priority END,
       delivered_at = NULL,
       history = jsonb_path_query_array(coalesce(t.history, '[]'), '$[last - 98 to last]') || f.entry::jsonb
  FROM fact AS f LEFT JOIN free AS n ON n.id = f.id
 WHERE t.id = f.id AND t.attempt = f.attempt
   AND CASE WHEN t.state IN ('dispatching', 'delivered', 'running') THEN true ELSE false END     -- CASE: see task_claim
   AND NOT t.stopping
   AND (t.max_attempts IS NULL OR t.attempt - t.attempts_base < t.max_attempts)
   AND (NOT f.at_deadline OR t.wake_at <= clock_timestamp())
   AND (NOT f.at_deadline OR n.id IS NOT NULL)
RETURNING t.id
