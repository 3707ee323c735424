-- Walks as bulk_look_finished.sql does, over the tasks that finished without success. It follows
-- archive_unsuccessful, so it finds a few dead tasks among millions.
-- $12 the time before which the tasks have finished, or NULL. A revived task that dies again lies ahead of the walk.
-- `key_taken`: an unfinished task has the same key and version.
SELECT seen.*,
       seen.hit AND EXISTS (SELECT
                              FROM duetime.task AS t
                             WHERE t.queue = seen.queue AND t.key = seen.key AND t.version = seen.version AND t.shard <> ALL($11)
                               AND coalesce(t.partition_key, '') = coalesce(seen.partition_key, '')) AS key_taken
  FROM (SELECT looked_at.*, row_number() OVER (ORDER BY due_at, id) AS nth
          FROM (SELECT id, state::text AS state, due_at, expires_at, queue, key, partition_key, version, drop_on,
                       (octet_length(payload) + coalesce(CASE WHEN pg_column_compression(history) IS NULL THEN pg_column_size(history) ELSE octet_length(history::text) END, 0) + coalesce(octet_length(result), 0))::bigint AS bytes,
                       coalesce(shard <> ALL($11::int[]) AND ($5::text IS NULL OR state::text = $5) AND ($6::text IS NULL OR partition_key = $6)
                           AND ($7::text IS NULL OR key = $7) AND ($8::text IS NULL OR strpos(coalesce(status_msg, history -> -1 ->> 'error'), $8) > 0)
                           AND ($12::timestamptz IS NULL OR finished_at < $12), false) AS hit
                  FROM duetime.archive
                 WHERE queue = $1 AND (due_at, id) > ($2::timestamptz, $3::uuid) AND due_at < $4::timestamptz
                   AND state <> 'succeeded'
                 ORDER BY due_at, id
                 LIMIT $9) AS looked_at) AS seen
 WHERE seen.hit OR seen.nth = $9
 ORDER BY seen.due_at, seen.id
 LIMIT $10
