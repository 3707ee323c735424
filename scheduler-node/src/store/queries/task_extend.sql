-- Writes that a consumer has started or is still at work: `running`, with a new deadline.
-- Guard: this attempt, and it has been handed over or may have been.
-- $1 ids; $2 attempts; $3 timeouts in ms; $4 progress; $5 workers (pairwise). Returns the ids that changed.
UPDATE duetime.task AS t
   SET state = 'running', wake_at = clock_timestamp() + f.timeout_ms * interval '1 ms',
       progress = coalesce(f.progress, t.progress), worker = coalesce(f.worker, t.worker)
  FROM unnest($1::uuid[], $2::int[], $3::bigint[], $4::smallint[], $5::text[]) AS f (id, attempt, timeout_ms, progress, worker)
 WHERE t.id = f.id AND t.attempt = f.attempt
   AND CASE WHEN t.state IN ('dispatching', 'delivered', 'running') THEN true ELSE false END     -- CASE: see task_claim
RETURNING t.id
