-- Revokes the token of a name; the revision rises with it. The token grants no access from then on.
-- $1 name; $2 revoked by. Returns the token; no row: there is none of this name that is not revoked.
-- Guard: the second of two concurrent statements finds the token revoked.
WITH revoked AS (
    UPDATE duetime.token SET revoked_at = clock_timestamp(), revoked_by = $2 WHERE name = $1 AND revoked_at IS NULL
    RETURNING id, name, role, queues, created_at, created_by, expires_at, revoked_at, revoked_by, limits
), noticed AS (
    UPDATE duetime.meta SET token_revision = token_revision + 1 WHERE EXISTS (SELECT FROM revoked)
)
SELECT id, name, role, queues, created_at, created_by, expires_at, revoked_at, revoked_by, limits FROM revoked
