-- Deletes tokens that were revoked long ago; no node holds a copy of them.
-- $1 how long a revoked token is kept; $2 the limit of tokens. Returns the number of deleted tokens.
WITH gone AS (
    DELETE FROM duetime.token
     WHERE id IN (SELECT id FROM duetime.token WHERE revoked_at < clock_timestamp() - $1::interval LIMIT $2 FOR UPDATE SKIP LOCKED)
    RETURNING id
)
SELECT count(*) AS tokens FROM gone
