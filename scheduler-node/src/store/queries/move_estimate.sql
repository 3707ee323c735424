-- Estimates the rows of a shard: counts its unfinished tasks, and gives it an even part of the archive. A count of more
-- than a million would take longer than a statement may, so it ends there, and an even part of the tasks is taken
-- if that is more. $1 shard.
SELECT CASE WHEN counted.rows < 1000000 THEN counted.rows ELSE greatest(counted.rows, even.tasks) END + even.archive AS rows
  FROM (SELECT count(*) AS rows
          FROM (SELECT FROM duetime.task AS t WHERE t.shard = $1 AND t.state <> 'ready' ORDER BY t.wake_at LIMIT 1000000) AS some_tasks) AS counted
 CROSS JOIN (
       SELECT (SELECT greatest(c.reltuples, 0)::bigint FROM pg_class AS c WHERE c.oid = 'duetime.task'::regclass) / h.shards AS tasks,
              (SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint
                 FROM pg_inherits AS i
                 JOIN pg_class AS c ON c.oid = i.inhrelid
                WHERE i.inhparent = 'duetime.archive'::regclass) / h.shards AS archive
         FROM (SELECT greatest(1, count(*)) AS shards FROM duetime.shard WHERE status IN ('here', 'leaving')) AS h) AS even
