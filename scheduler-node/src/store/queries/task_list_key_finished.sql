-- One page of the finished tasks with the key $9. It works as task_list_key.sql does, along archive_key_version.
-- A queue may have been deleted since. So beside the queues $11 it reads those that a hop from name to name finds, as
-- in task_list_finished.sql, at most $12 of them; 0: none.
WITH RECURSIVE hop (queue, nth) AS (
    (SELECT queue, 1 FROM duetime.archive WHERE $1::text IS NULL AND $12::int > 0 ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT a.queue FROM duetime.archive AS a WHERE a.queue > hop.queue ORDER BY a.queue LIMIT 1), hop.nth + 1
      FROM hop
     WHERE hop.queue IS NOT NULL AND hop.nth < $12::int
), named AS MATERIALIZED (
    SELECT $1::text AS queue WHERE $1::text IS NOT NULL
    UNION
    SELECT unnest($11::text[]) WHERE $1::text IS NULL
    UNION
    -- Only those that have the key: each queue gets a share of the rows to examine.
    SELECT hop.queue
      FROM hop
     CROSS JOIN LATERAL (SELECT FROM duetime.archive AS a WHERE a.queue = hop.queue AND a.key = $9::text LIMIT 1) AS one
), share AS MATERIALIZED (
    SELECT greatest(1, $7::bigint / greatest(1, count(*))) AS look FROM named
), page AS MATERIALIZED (
    SELECT found.*
      FROM named
     CROSS JOIN share
     CROSS JOIN LATERAL (
           SELECT id, drop_on, due_at, seen.hit, seen.many > share.look AS too_many
             FROM (SELECT id, drop_on, due_at, count(*) OVER () AS many,
                          coalesce(shard <> ALL($13::int[]) AND (due_at, id) > ($4::timestamptz, $5::uuid) AND due_at < $6::timestamptz
                              AND ($2::text IS NULL OR state::text = $2) AND ($3::text IS NULL OR partition_key = $3)
                              AND ($10::text IS NULL OR strpos(coalesce(status_msg, history -> -1 ->> 'error'), $10) > 0), false) AS hit
                     FROM (SELECT * FROM duetime.archive WHERE queue = named.queue AND key = $9::text LIMIT share.look + 1) AS keyed) AS seen
            WHERE seen.hit OR seen.many > share.look
            ORDER BY due_at, id
            LIMIT $8) AS found
     ORDER BY found.too_many DESC, found.due_at, found.id
     LIMIT $8
)
SELECT page.hit, false AS looked_up_to, page.too_many,
       a.id, a.queue, a.state::text AS state, a.wake_at, a.due_at, a.expires_at, a.priority, a.attempt,
       a.max_attempts, CASE WHEN long.payload THEN NULL ELSE a.payload END AS payload, a.content_type, a.headers,
       a.key, a.version, a.partition_key, a.delivered_at, a.progress, a.worker, CASE WHEN long.history THEN NULL ELSE a.history END AS history,
       a.created_at, a.finished_at, CASE WHEN long.result THEN NULL ELSE a.result END AS result, a.status_code,
       CASE WHEN long.status_msg THEN NULL ELSE a.status_msg END AS status_msg,
       false AS stopping,
       array_remove(ARRAY[CASE WHEN long.payload THEN 'payload' END, CASE WHEN long.history THEN 'attempts' END, CASE WHEN long.result THEN 'result' END, CASE WHEN long.status_msg THEN 'status_msg' END], NULL) AS left_out
  FROM page
 CROSS JOIN LATERAL (SELECT * FROM duetime.archive WHERE drop_on = page.drop_on AND id = page.id LIMIT 1) AS a
 CROSS JOIN LATERAL (SELECT octet_length(a.payload) > 4096 AS payload,
                            CASE WHEN pg_column_size(a.history) > 4096 THEN true
                                 WHEN pg_column_compression(a.history) IS NOT NULL THEN octet_length(a.history::text) > 4096 END AS history,
                            octet_length(a.result) > 4096 AS result,
                            octet_length(a.status_msg) > 4096 AS status_msg) AS long
 ORDER BY page.due_at, page.id
