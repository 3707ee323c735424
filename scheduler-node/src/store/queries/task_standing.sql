-- Where tasks stand, to decide what a deadline, a rejection or a report means for them.
-- $1 ids. Rows that have finished are not here any more.
SELECT id, queue, state::text AS state, attempt, attempts_base, max_attempts, timeout_ms, retry, claimed_at, wake_at, stopping,
       headers ->> 'traceparent' AS traceparent, clock_timestamp() AS now
  FROM duetime.task
 WHERE id = ANY($1::uuid[])
