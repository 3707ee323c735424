-- Moves deadlines on that pass soon: a report on the attempt has come, and cannot be written for now.
-- Guard: this attempt, and a deadline may end it. The statement skips a row that another transaction locks: a deadline
-- passes over it too. It leaves a deadline alone that has half of $3 left, so that a report which is tried again and
-- again costs few writes.
-- $1 ids; $2 attempts (pairwise); $3 the time in ms that a deadline gets from now on. Returns the ids that changed.
WITH free AS MATERIALIZED (
    SELECT t.id
      FROM unnest($1::uuid[], $2::int[]) AS f (id, attempt)
      JOIN duetime.task AS t ON t.id = f.id AND t.attempt = f.attempt
     WHERE CASE WHEN t.state IN ('delivered', 'running') THEN true ELSE false END     -- CASE: see task_claim
       AND t.wake_at < clock_timestamp() + $3::bigint / 2 * interval '1 ms'
       FOR NO KEY UPDATE OF t SKIP LOCKED
)
UPDATE duetime.task AS t
   SET wake_at = clock_timestamp() + $3::bigint * interval '1 ms'
  FROM free AS f
 WHERE t.id = f.id
RETURNING t.id
