-- Reads the role that owns what migrations have made, and the role that this session acts as, where they differ.
-- No row: they are the same, or no migration has begun here. It reads the catalog only, so it needs no right on the
-- schema.
SELECT pg_get_userbyid(c.relowner)::text AS owner, current_user::text AS login
  FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname = 'duetime' AND c.relname = 'migration' AND c.relkind = 'r'
   AND pg_get_userbyid(c.relowner) <> current_user
