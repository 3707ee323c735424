-- Counts the unfinished tasks by state. It reads every row while the table has at most $1 pages; beyond that it
-- estimates from about $1 pages picked at random. `share`: the share of the pages that were read; 1 is exact. One row
-- without a state: there was no task.
-- $2 shards to leave out, because their place is another database.
SELECT asked.share, c.state::text AS state, coalesce(c.tasks, 0) AS tasks
  FROM (SELECT least(1.0, $1::float8 * 8192 / greatest(1, pg_relation_size('duetime.task'))) AS share) AS asked
  LEFT JOIN (SELECT state, count(*) AS tasks
               FROM duetime.task TABLESAMPLE SYSTEM (least(100.0, 100.0 * $1::float8 * 8192 / greatest(1, pg_relation_size('duetime.task'))))
              WHERE shard <> ALL($2::int[])
              GROUP BY state) AS c ON true
