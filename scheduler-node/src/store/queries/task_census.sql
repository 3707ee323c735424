-- How many tasks that are not finished there are in which state: of every row while the table has at most $1 pages, beyond that estimated
-- from about so many pages picked at random. `share` of the pages were read: 1 is exact. One row without a state when none was found.
SELECT asked.share, c.state::text AS state, coalesce(c.tasks, 0) AS tasks
  FROM (SELECT least(1.0, $1::float8 * 8192 / greatest(1, pg_relation_size('duetime.task'))) AS share) AS asked
  LEFT JOIN (SELECT state, count(*) AS tasks
               FROM duetime.task TABLESAMPLE SYSTEM (least(100.0, 100.0 * $1::float8 * 8192 / greatest(1, pg_relation_size('duetime.task'))))
              GROUP BY state) AS c ON true
