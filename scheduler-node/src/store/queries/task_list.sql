-- One page of the unfinished tasks, in the order of (due_at, id).
-- Walks task_queue_due queue by queue, so that the statement never sorts more than the page itself. Without a queue
-- ($1) it hops from one queue's name to the next along the same index. It reads at most $7 rows, shared out over the
-- queues, whatever the filter. The row that uses up a queue's share comes back too, as `looked_up_to`, and the page
-- ends there. The limit beside the order keeps the planner from sorting a whole queue.
-- $1 queue, $2 state, $3 partition key (each NULL: any); $4 and $5 the due time and id after which the page begins;
-- $6 the due time before which it ends; $7 the limit of rows to read; $8 the limit of rows to return; $9 key,
-- $10 part of the last error (each NULL: any). `hit`: the row matches the filter. Long values come back as NULL,
-- and `left_out` names their fields.
-- A NULL in a column makes a condition NULL, which is no hit either.
-- $11 names of the queues to walk when $1 is NULL; NULL: the queues that a hop finds, at most $12 of them.
-- $13 shards whose rows are no hits, because their place is another database.
WITH RECURSIVE hop (queue, nth) AS (
    (SELECT queue, 1 FROM duetime.task WHERE $1::text IS NULL AND $11::text[] IS NULL ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT t.queue FROM duetime.task AS t WHERE t.queue > hop.queue ORDER BY t.queue LIMIT 1), hop.nth + 1
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
           SELECT seen.id, seen.due_at, seen.hit, seen.nth = share.look AS looked_up_to
             FROM (SELECT id, due_at, hit, row_number() OVER (ORDER BY due_at, id) AS nth
                     FROM (SELECT id, due_at,
                                  coalesce(shard <> ALL($13::int[]) AND ($2::text IS NULL OR state::text = $2) AND ($3::text IS NULL OR partition_key = $3) AND ($9::text IS NULL OR key = $9)
                                      AND ($10::text IS NULL OR strpos(history -> -1 ->> 'error', $10) > 0), false) AS hit
                             FROM duetime.task
                            WHERE queue = named.queue AND (due_at, id) > ($4::timestamptz, $5::uuid)
                              AND due_at < $6::timestamptz
                            ORDER BY due_at, id
                            LIMIT share.look) AS looked_at) AS seen
            WHERE seen.hit OR seen.nth = share.look
            ORDER BY seen.due_at, seen.id
            LIMIT $8) AS found
     ORDER BY found.due_at, found.id
     LIMIT $8
)
SELECT page.hit, page.looked_up_to,
       t.id, t.queue, t.state::text AS state, t.wake_at, t.due_at, t.expires_at, t.priority, t.attempt,
       t.max_attempts, CASE WHEN long.payload THEN NULL ELSE t.payload END AS payload, t.content_type, t.headers,
       t.key, t.version, t.partition_key, t.delivered_at, t.progress, t.worker, CASE WHEN long.history THEN NULL ELSE t.history END AS history,
       t.created_at, NULL::timestamptz AS finished_at, NULL::text AS result, NULL::bigint AS status_code, NULL::text AS status_msg,
       t.stopping,
       array_remove(ARRAY[CASE WHEN long.payload THEN 'payload' END, CASE WHEN long.history THEN 'attempts' END], NULL) AS left_out
  FROM page
 CROSS JOIN LATERAL (SELECT * FROM duetime.task WHERE id = page.id LIMIT 1) AS t      -- LIMIT 1: a look-up by key
 CROSS JOIN LATERAL (SELECT octet_length(t.payload) > 4096 AS payload,
                            CASE WHEN pg_column_size(t.history) > 4096 THEN true
                                 WHEN pg_column_compression(t.history) IS NOT NULL THEN octet_length(t.history::text) > 4096 END AS history) AS long
 ORDER BY page.due_at, page.id
