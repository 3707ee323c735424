-- Stores a token. The revision rises with it.
-- $1 name; $2 role; $3 queues or NULL; $4 sha256; $5 created by; $6 expires at or NULL; $7 the limit of tokens that
-- are not revoked; $8 limits or NULL.
-- Returns the token; no row: there are $7 already. A name that is taken is a unique violation (23505).
-- Guard: none on the number. Each of several concurrent statements may add the last token that fits, and all of them
-- succeed.
WITH added AS (
    INSERT INTO duetime.token (name, role, queues, sha256, created_by, expires_at, limits)
    SELECT $1::text, $2::text, $3::text[], $4::bytea, $5::text, $6::timestamptz, $8::jsonb
     WHERE (SELECT count(*) FROM duetime.token WHERE revoked_at IS NULL) < $7
    RETURNING id, name, role, queues, created_at, created_by, expires_at, revoked_at, revoked_by, limits
), noticed AS (
    UPDATE duetime.meta SET token_revision = token_revision + 1 WHERE EXISTS (SELECT FROM added)
)
SELECT id, name, role, queues, created_at, created_by, expires_at, revoked_at, revoked_by, limits FROM added
