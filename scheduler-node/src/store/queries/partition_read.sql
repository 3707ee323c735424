-- Lists the partitions of the archive, each with the day on which its rows may be dropped, and today's date, in UTC.
SELECT c.relname AS name,
       to_date(right(c.relname, 8), 'YYYYMMDD') AS drop_on,
       (clock_timestamp() AT TIME ZONE 'UTC')::date AS today,
       i.inhdetachpending AS half_detached
  FROM pg_inherits AS i
  JOIN pg_class AS c ON c.oid = i.inhrelid
 WHERE i.inhparent = 'duetime.archive'::regclass
