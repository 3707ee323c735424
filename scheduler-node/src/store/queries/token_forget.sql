-- Deletes tokens that were revoked long ago; nobody holds a copy of them.
-- $1 how long they are kept, $2 most. Returns how many there were.
WITH gone AS (
    DELETE FROM duetime.token
     WHERE id IN (SELECT id FROM duetime.token WHERE revoked_at < clock_timestamp() - $1::interval LIMIT $2 FOR UPDATE SKIP LOCKED)
    RETURNING id
)
SELECT count(*) AS tokens FROM gone
