-- Finds the presence locks that sessions hold. A free lock is taken, shared, until this statement ends: nodes that
-- look at the same time do not see one another.
-- $1 the keys of the locks. Returns the keys of those that are held.
SELECT key FROM unnest($1::bigint[]) AS asked (key) WHERE NOT pg_try_advisory_xact_lock_shared(key)
