-- Writes the broker's confirms of tasks whose outcome stays open: `delivered`, with the deadline for the outcome.
-- Guard: this attempt, still `dispatching`. A confirm is a fact, so it needs no fence; a late confirm of an older
-- attempt changes nothing.
-- `delivered_at` is the time of the confirm, which tells whether the message came before a change of the queue. The
-- deadline counts from the write, because a lock that delays it delays reports too.
-- $1 ids; $2 attempts; $3 timeouts in ms; $4 how many us ago the confirms came (pairwise).
UPDATE duetime.task AS t
   SET state = 'delivered', delivered_at = statement_timestamp() - f.age_us * interval '1 us',
       wake_at = clock_timestamp() + f.timeout_ms * interval '1 ms'
  FROM unnest($1::uuid[], $2::int[], $3::bigint[], $4::bigint[]) AS f (id, attempt, timeout_ms, age_us)
 WHERE t.id = f.id AND t.attempt = f.attempt
   AND CASE WHEN t.state = 'dispatching' THEN true ELSE false END     -- CASE: see task_claim
