-- Estimates what each shard carries here: its unfinished tasks, its finished ones, their bytes without indexes, and how
-- many finished in the last day. It reads every row while a table has at most $1 pages. Beyond that it reads about $1
-- pages picked at random, of the archive as a whole, and scales up. Large values count with their stored size and are
-- not read.
-- $2 the bytes of a row beside its large values. Shards without a row in the sample are left out.
WITH bounds AS MATERIALIZED (
    SELECT least(1.0, $1::float8 * 8192 / greatest(1, pg_relation_size('duetime.task'))) AS task_share,
           least(1.0, $1::float8 * 8192 / greatest(1, (SELECT sum(pg_relation_size(p.relid)) FROM pg_partition_tree('duetime.archive') AS p WHERE p.isleaf))) AS archive_share
), live AS (
    SELECT t.shard, count(*) AS tasks,
           sum($2::bigint + pg_column_size(t.payload) + coalesce(pg_column_size(t.headers), 0) + coalesce(pg_column_size(t.history), 0)) AS bytes
      FROM duetime.task AS t TABLESAMPLE SYSTEM ((SELECT 100 * b.task_share FROM bounds AS b))
     GROUP BY t.shard
), kept AS (
    SELECT a.shard, count(*) AS tasks, count(*) FILTER (WHERE a.finished_at > clock_timestamp() - interval '1 day') AS lately,
           sum($2::bigint + pg_column_size(a.payload) + coalesce(pg_column_size(a.headers), 0) + coalesce(pg_column_size(a.history), 0)
               + coalesce(pg_column_size(a.result), 0)) AS bytes
      FROM duetime.archive AS a TABLESAMPLE SYSTEM ((SELECT 100 * b.archive_share FROM bounds AS b))
     GROUP BY a.shard
)
SELECT coalesce(l.shard, k.shard) AS shard,
       round(coalesce(l.tasks, 0) / b.task_share)::bigint AS tasks,
       round(coalesce(k.tasks, 0) / b.archive_share)::bigint AS finished,
       round(coalesce(l.bytes, 0) / b.task_share + coalesce(k.bytes, 0) / b.archive_share)::bigint AS bytes,
       round(coalesce(k.lately, 0) / b.archive_share)::bigint AS finished_lately
  FROM live AS l FULL JOIN kept AS k ON k.shard = l.shard CROSS JOIN bounds AS b
 ORDER BY 1
