-- Takes over decided fire times whose tasks are not known to be written, the longest waiting first.
-- Guard: concurrent takers get different rows. A taker that exceeds its time shares its rows with the next one; the
-- id of the task makes that harmless.
-- The caller leaves out the shards of a database that is away or takes no tasks, so that these do not stand in the way
-- of the others.
-- $1 how long this taker has; $2 the limit of rows; $3 the shards of the tasks; $4 the `wake_at` before which fire
-- times are not looked at.
WITH taken AS MATERIALIZED (
    SELECT id FROM duetime.fire
     WHERE wake_at >= $4 AND wake_at <= statement_timestamp() AND duetime.shard_in(id) = ANY ($3::int[])
     ORDER BY wake_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE duetime.fire AS f
   SET wake_at = clock_timestamp() + $1
  FROM taken
 WHERE f.id = taken.id
RETURNING f.id, f.schedule, f.fire_at, f.buffered, f.rules, f.payload
