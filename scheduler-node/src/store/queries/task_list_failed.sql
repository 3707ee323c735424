-- One page of the tasks that finished without success. It works as task_list_finished.sql does, along
-- archive_unsuccessful, so that it finds a few dead tasks among millions that succeeded.
WITH RECURSIVE hop (queue, nth) AS (
    (SELECT queue, 1 FROM duetime.archive WHERE $1::text IS NULL AND $11::text[] IS NULL AND state <> 'succeeded' ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT a.queue FROM duetime.archive AS a WHERE a.queue > hop.queue AND a.state <> 'succeeded' ORDER BY a.queue LIMIT 1), hop.nth + 1
      FROM hop
     WHERE hop.queue IS NOT NULL AND hop.nth < $12::int
), named AS MATERIALIZED (
    SELECT queue FROM hop WHERE queue IS NOT NULL
    UNION ALL
    SELECT $1::text WHERE $1::text IS NOT NULL
    UNION ALL
    SELECT unnest($11::text[]) WHERE $1::text IS NULL
), share AS MATERIALIZED (
    SELECT greatest(1, $7::bigint / greatest(1, count(*))) AS look FROM named
), page AS MATERIALIZED (
    SELECT found.*
      FROM named
     CROSS JOIN share
     CROSS JOIN LATERAL (
           SELECT seen.id, seen.drop_on, seen.due_at, seen.hit, seen.nth = share.look AS looked_up_to
             FROM (SELECT id, drop_on, due_at, hit, row_number() OVER (ORDER BY due_at, id) AS nth
                     FROM (SELECT id, drop_on, due_at,
                                  coalesce(shard <> ALL($13::int[]) AND ($2::text IS NULL OR state::text = $2) AND ($3::text IS NULL OR partition_key = $3) AND ($9::text IS NULL OR key = $9)
                                      AND ($10::text IS NULL OR strpos(coalesce(status_msg, history -> -1 ->> 'error'), $10) > 0), false) AS hit
                             FROM duetime.archive
                            WHERE queue = named.queue AND (due_at, id) > ($4::timestamptz, $5::uuid)
                              AND due_at < $6::timestamptz AND state <> 'succeeded'
                            ORDER BY due_at, id
                            LIMIT share.look) AS looked_at) AS seen
            WHERE seen.hit OR seen.nth = share.look
            ORDER BY seen.due_at, seen.id
            LIMIT $8) AS found
     ORDER BY found.due_at, found.id
     LIMIT $8
)
SELECT page.hit, page.looked_up_to,
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
