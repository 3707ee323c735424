-- Sets a queue's policy, and whether it is paused unless $3 is NULL: then it stays as it is. The revision rises with it.
-- $1 name, $2 policy, $3 paused, $4 the most queues in all. Returns the queue as it is now; `created`: it was not there before. No row:
-- it is not there, and there is no room for another.
WITH put AS (
    INSERT INTO duetime.queue AS q (name, policy, paused)
    SELECT $1, $2, coalesce($3, false)
     WHERE EXISTS (SELECT FROM duetime.queue WHERE name = $1) OR (SELECT count(*) FROM duetime.queue) < $4::int8
        ON CONFLICT (name) DO UPDATE
       SET policy = excluded.policy, paused = coalesce($3, q.paused), updated_at = clock_timestamp()
    RETURNING name, policy, paused, created_at, updated_at, q.xmax = 0 AS created     -- only an update leaves an xmax
), noticed AS (
    UPDATE duetime.meta SET queue_revision = queue_revision + 1 WHERE EXISTS (SELECT FROM put)
)
SELECT name, policy, paused, created_at, updated_at, created FROM put
