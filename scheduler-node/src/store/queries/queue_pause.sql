-- Pauses or resumes a queue. The revision rises with it.
-- $1 name, $2 paused. Returns the queue as it is now; no row: there is no such queue.
WITH turned AS (
    UPDATE duetime.queue SET paused = $2, updated_at = clock_timestamp() WHERE name = $1
    RETURNING name, policy, paused, created_at, updated_at
), noticed AS (
    UPDATE duetime.meta SET queue_revision = queue_revision + 1 WHERE EXISTS (SELECT FROM turned)
)
SELECT name, policy, paused, created_at, updated_at FROM turned
