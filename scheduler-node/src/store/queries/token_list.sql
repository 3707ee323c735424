-- One page of tokens, newest first, revoked ones too; never their hashes.
-- $1 the id before which the page begins, or NULL; $2 the limit of tokens.
SELECT id, name, role, queues, created_at, created_by, expires_at, revoked_at, revoked_by, limits
  FROM duetime.token
 WHERE $1::bigint IS NULL OR id < $1
 ORDER BY id DESC
 LIMIT $2
