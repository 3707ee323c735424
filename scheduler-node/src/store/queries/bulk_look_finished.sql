-- Walks as bulk_look.sql does, over the finished tasks, along archive_queue_due. There is no $12.
SELECT seen.id, seen.state, seen.due_at, seen.expires_at, seen.key_taken, seen.drop_on, seen.hit, seen.nth,
       CASE WHEN seen.hit THEN (seen.other_bytes + coalesce(CASE
           WHEN pg_column_compression(seen.history) IS NULL THEN pg_column_size(seen.history)
           WHEN pg_column_size(seen.history) <= 8192 THEN octet_length(seen.history::text)
           ELSE pg_column_size(seen.history)::bigint * CASE pg_column_compression(seen.history) WHEN 'pglz' THEN 88 ELSE 255 END
       END, 0))::bigint END AS bytes
  FROM (SELECT looked_at.*, row_number() OVER (ORDER BY due_at, id) AS nth
          FROM (SELECT id, state::text AS state, due_at, expires_at, false AS key_taken, drop_on,
                       octet_length(payload) + coalesce(octet_length(result), 0) AS other_bytes, history,
                       coalesce(shard <> ALL($11::int[]) AND ($5::text IS NULL OR state::text = $5) AND ($6::text IS NULL OR partition_key = $6)
                           AND ($7::text IS NULL OR key = $7) AND ($8::text IS NULL OR strpos(coalesce(status_msg, history -> -1 ->> 'error'), $8) > 0), false) AS hit
                  FROM duetime.archive
                 WHERE queue = $1 AND (due_at, id) > ($2::timestamptz, $3::uuid) AND due_at < $4::timestamptz
                 ORDER BY due_at, id
                 LIMIT $9) AS looked_at) AS seen
 WHERE seen.hit OR seen.nth = $9
 ORDER BY seen.due_at, seen.id
 LIMIT $10
