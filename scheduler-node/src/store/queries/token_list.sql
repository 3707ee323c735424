-- A page of tokens, newest first, revoked ones too; never their hashes.
-- $1 only those before this id, or NULL; $2 most.
SELECT id, name, role, queues, created_at, created_by, expires_at, revoked_at, revoked_by, limits
  FROM duetime.token
 WHERE $1::bigint IS NULL OR id < $1
 ORDER BY id DESC
 LIMIT $2
