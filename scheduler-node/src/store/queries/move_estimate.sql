-- Estimates the rows of a shard: counts its unfinished tasks, and gives it an even part of the archive. $1 shard.
SELECT (SELECT count(*) FROM duetime.task WHERE shard = $1 AND state <> 'ready')
     + (SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint
          FROM pg_inherits AS i
          JOIN pg_class AS c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'duetime.archive'::regclass)
       / greatest(1, (SELECT count(*) FROM duetime.shard WHERE status IN ('here', 'leaving'))) AS rows
