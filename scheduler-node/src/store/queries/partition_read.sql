-- Lists the tables of the archive's days, those that are not attached too, and today's date in UTC; one row without a
-- name: there are none.
SELECT c.relname::text AS name,
       (clock_timestamp() AT TIME ZONE 'UTC')::date AS today,
       i.inhrelid IS NULL AS detached,
       coalesce(i.inhdetachpending, false) AS half_detached
  FROM (SELECT) AS always
  LEFT JOIN pg_class AS c ON c.relnamespace = 'duetime'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^archive_[0-9]{8}$'
  LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid AND i.inhparent = 'duetime.archive'::regclass
