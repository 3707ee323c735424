-- Writes the broker's confirms of tasks whose outcome stays open: `delivered`, with the deadline for the outcome.
-- Guard: this attempt, still `dispatching`. A confirm is a fact, so it needs no fence; a late confirm of an older
-- attempt changes nothing.
-- $1 ids; $2 attempts; $3 timeouts in ms (pairwise).
UPDATE duetime.task AS t
   SET state = 'delivered', delivered_at = clock_timestamp(), wake_at = clock_timestamp() + f.timeout_ms * interval '1 ms'
  FROM unnest($1::uuid[], $2::int[], $3::bigint[]) AS f (id, attempt, timeout_ms)
 WHERE t.id = f.id AND t.attempt = f.attempt
   AND CASE WHEN t.state = 'dispatching' THEN true ELSE false END     -- CASE: see task_claim
