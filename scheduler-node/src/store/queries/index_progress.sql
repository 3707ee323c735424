-- How far this database's build of an index of the table of tasks is. No row: none is under way.
-- A phase that counts nothing has no share. `waits_for` is the process of the transaction that the build waits for.
-- It reads the table that PostgreSQL keeps of such builds; no lock, no index. PostgreSQL shows a build to the login
-- that makes it, whatever role that acts as. The login may have no right on the schema, so the catalog is asked.
SELECT index_relid::regclass::text AS index,
       phase,
       CASE WHEN blocks_total > 0 THEN (100 * blocks_done / blocks_total)::int
            WHEN tuples_total > 0 THEN (100 * tuples_done / tuples_total)::int END AS done_percent,
       nullif(current_locker_pid, 0)::int AS waits_for
  FROM pg_stat_progress_create_index
 WHERE datname = current_database()
   AND relid = (SELECT c.oid FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
                 WHERE n.nspname = 'duetime' AND c.relname = 'task')
