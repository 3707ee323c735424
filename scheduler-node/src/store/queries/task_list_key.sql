-- One page of the unfinished tasks with the key $9, in the order of (due_at, id). The parameters are those of
-- task_list.sql.
-- Probes task_key_version queue by queue, so that a key costs the same however many tasks there are. `too_many`: a
-- queue has more rows with the key than its share of $7, so the page is incomplete and the caller has to walk the
-- queue. Such rows come first, so that the limit leaves one of them: the queue may have a task that is due before the
-- whole page. Another node may have made a queue just now, and a task may have one that no node could make. So beside
-- the queues $11 it reads those that a hop from name to name finds, at most $12 of them; 0: none. The hop goes along
-- task_key_version, by its order: tasks without a key cost it nothing.
-- $13 shards whose rows are no hits, because their place is another database.
WITH RECURSIVE hop (queue, nth) AS (
    (SELECT t.queue, 1 FROM duetime.task AS t WHERE $1::text IS NULL AND $12::int > 0 AND t.key IS NOT NULL ORDER BY t.queue, t.key LIMIT 1)
    UNION ALL
    SELECT (SELECT t.queue FROM duetime.task AS t WHERE t.key IS NOT NULL AND t.queue > hop.queue ORDER BY t.queue, t.key LIMIT 1), hop.nth + 1
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
     CROSS JOIN LATERAL (SELECT FROM duetime.task AS t WHERE t.queue = hop.queue AND t.key = $9::text LIMIT 1) AS one
), share AS MATERIALIZED (
    SELECT greatest(1, $7::bigint / greatest(1, count(*))) AS look FROM named
), page AS MATERIALIZED (
    SELECT found.*
      FROM named
     CROSS JOIN share
     CROSS JOIN LATERAL (
           SELECT id, due_at, seen.hit, seen.many > share.look AS too_many
             FROM (SELECT id, due_at, count(*) OVER () AS many,
                          coalesce(shard <> ALL($13::int[]) AND (due_at, id) > ($4::timestamptz, $5::uuid) AND due_at < $6::timestamptz
                              AND ($2::text IS NULL OR state::text = $2) AND ($3::text IS NULL OR partition_key = $3)
                              AND ($10::text IS NULL OR strpos(history -> -1 ->> 'error', $10) > 0), false) AS hit
                     FROM (SELECT * FROM duetime.task WHERE queue = named.queue AND key = $9::text LIMIT share.look + 1) AS keyed) AS seen
            WHERE seen.hit OR seen.many > share.look
            ORDER BY due_at, id
            LIMIT $8) AS found
     ORDER BY found.too_many DESC, found.due_at, found.id
     LIMIT $8
)
SELECT page.hit, false AS looked_up_to, page.too_many,
       t.id, t.queue, t.state::text AS state, t.wake_at, t.due_at, t.expires_at, t.priority, t.attempt,
       t.max_attempts, CASE WHEN long.payload THEN NULL ELSE t.payload END AS payload, t.content_type, t.headers,
       t.key, t.version, t.partition_key, t.delivered_at, t.progress, t.worker, CASE WHEN long.history THEN NULL ELSE t.history END AS history,
       t.created_at, NULL::timestamptz AS finished_at, NULL::text AS result, NULL::bigint AS status_code, NULL::text AS status_msg,
       t.stopping,
       array_remove(ARRAY[CASE WHEN long.payload THEN 'payload' END, CASE WHEN long.history THEN 'attempts' END], NULL) AS left_out
  FROM page
 CROSS JOIN LATERAL (SELECT * FROM duetime.task WHERE id = page.id LIMIT 1) AS t
 CROSS JOIN LATERAL (SELECT octet_length(t.payload) > 4096 AS payload,
                            CASE WHEN pg_column_size(t.history) > 4096 THEN true
                                 WHEN pg_column_compression(t.history) IS NOT NULL THEN octet_length(t.history::text) > 4096 END AS history) AS long
 ORDER BY page.due_at, page.id
