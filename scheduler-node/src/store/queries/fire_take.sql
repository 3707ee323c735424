-- Takes on decided fire times whose tasks are not known to be written, the longest waiting first.
-- Guard: of two that take at the same moment each gets others; one that is slow shares its own with the next, and the id of the task
-- makes that harmless.
-- $1 how long this taker has, $2 how many.
WITH taken AS MATERIALIZED (
    SELECT id FROM duetime.fire WHERE wake_at <= statement_timestamp() ORDER BY wake_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE duetime.fire AS f
   SET wake_at = clock_timestamp() + $1
  FROM taken
 WHERE f.id = taken.id
RETURNING f.id, f.schedule, f.fire_at, f.buffered, f.rules, f.payload
