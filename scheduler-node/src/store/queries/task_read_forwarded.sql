-- Tells whether a finished task is a message of a delay exchange, which has an envelope and needs no queue of its own.
-- Probes the archive partition by partition, as task_read.sql does.
-- A shard that has moved to another database fails the statement (DT001): what is left here may be old.
-- $1 id. Returns one row, with false too if no such task is in the archive.
WITH placed AS MATERIALIZED (
    SELECT duetime.require_place(ARRAY[duetime.shard_in($1)]) AS is_here
)
SELECT (SELECT is_here FROM placed) AND EXISTS (
    SELECT
      FROM (SELECT to_date(right(c.relname, 8), 'YYYYMMDD') AS drop_on
              FROM pg_inherits AS i
              JOIN pg_class AS c ON c.oid = i.inhrelid
             WHERE i.inhparent = 'duetime.archive'::regclass AND NOT i.inhdetachpending) AS day
     CROSS JOIN LATERAL (SELECT envelope FROM duetime.archive WHERE drop_on = day.drop_on AND id = $1 LIMIT 1) AS a
     WHERE a.envelope IS NOT NULL) AS forwarded
