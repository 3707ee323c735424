-- Reads changes of a leaving shard, oldest first, and the rows that they are about, as they are now. One snapshot shows
-- both, so a row is at least as new as its change.
-- $1 shard; $2 the most changes; $3 the bytes beyond which no further change is read, by duetime.row_bytes; $4 the
-- number after which to read. Numbers are drawn before their writers commit, so a reader that goes on after a number
-- misses changes unless the shard is closed.
-- Returns one row: the numbers of the changes, of each table the ids concerned and the present rows as the text of an
-- array, and whether these are all changes. Rows of the archive whose retention is over are left out.
WITH change AS MATERIALIZED (
    SELECT c.number, c.guarded, c.id, c.drop_on
      FROM (SELECT m.number, m.guarded, m.id, m.drop_on,
                   sum(coalesce((SELECT duetime.row_bytes(t.payload, NULL, NULL, t.headers, t.envelope, t.history, t.depends_on, t.depends_met)
                                   FROM duetime.task AS t
                                  WHERE m.guarded = 'task' AND t.id = m.id), 0)
                     + coalesce((SELECT duetime.row_bytes(a.payload, a.result, a.status_msg, a.headers, a.envelope, a.history, NULL, NULL)
                                   FROM duetime.archive AS a
                                  WHERE m.guarded = 'archive' AND a.drop_on = m.drop_on AND a.id = m.id), 0))
                   OVER (ORDER BY m.number) AS bytes
              FROM (SELECT * FROM duetime.move_change WHERE shard = $1 AND number > $4 ORDER BY number LIMIT $2) AS m) AS c
     WHERE c.bytes < $3 OR c.number = (SELECT f.number FROM duetime.move_change AS f WHERE f.shard = $1 AND f.number > $4 ORDER BY f.number LIMIT 1)
), finished AS MATERIALIZED (
    SELECT DISTINCT c.drop_on, c.id FROM change AS c WHERE c.guarded = 'archive'
)
SELECT ARRAY(SELECT number FROM change ORDER BY number) AS numbers,
       NOT EXISTS (SELECT FROM duetime.move_change AS m
                    WHERE m.shard = $1 AND m.number > coalesce((SELECT max(number) FROM change), $4)) AS are_all,
       ARRAY(SELECT DISTINCT id FROM change WHERE guarded = 'task') AS task_ids,
       (SELECT array_agg(t) FROM duetime.task AS t
         WHERE t.id = ANY(ARRAY(SELECT id FROM change WHERE guarded = 'task')))::text AS tasks,
       ARRAY(SELECT drop_on FROM finished ORDER BY drop_on, id) AS days,
       ARRAY(SELECT id FROM finished ORDER BY drop_on, id) AS archive_ids,
       (SELECT array_agg(a)
          FROM finished AS f
          JOIN duetime.archive AS a ON a.drop_on = f.drop_on AND a.id = f.id
         WHERE f.drop_on > (clock_timestamp() AT TIME ZONE 'UTC')::date)::text AS archived,
       ARRAY(SELECT DISTINCT id FROM change WHERE guarded = 'received') AS received_ids,
       (SELECT array_agg(r) FROM duetime.received AS r
         WHERE r.id = ANY(ARRAY(SELECT id FROM change WHERE guarded = 'received')))::text AS received
