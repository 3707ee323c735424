-- Walks as bulk_look_finished.sql does, over the tasks that finished without success. It follows
-- archive_unsuccessful, so it finds a few dead tasks among millions.
-- $12 the time before which the tasks have finished, or NULL. A revived task that dies again lies ahead of the walk.
-- `key_taken`: as in the function duetime.task_revive, an unfinished task has the key in this version or a newer one,
-- or a finished task has it in a newer one. Or a later task of this version has succeeded or died. Otherwise the walk
-- would bring back the first of several, which it meets first, and refuse the others beside it. The look for that one
-- follows archive_key_finished, which has the tasks that were cancelled or expired apart. A task finishes after it was
-- created, so one that was created later finishes later than that.
SELECT seen.id, seen.state, seen.due_at, seen.expires_at, seen.drop_on, seen.hit, seen.nth,
       CASE WHEN seen.hit THEN (seen.other_bytes + coalesce(CASE
           WHEN pg_column_compression(seen.history) IS NULL THEN pg_column_size(seen.history)
           WHEN pg_column_size(seen.history) <= 8192 THEN octet_length(seen.history::text)
           ELSE pg_column_size(seen.history)::bigint * CASE pg_column_compression(seen.history) WHEN 'pglz' THEN 88 ELSE 255 END
       END, 0))::bigint END AS bytes,
       seen.hit AND seen.key IS NOT NULL
       AND (EXISTS (SELECT
                      FROM duetime.task AS t
                     WHERE t.queue = seen.queue AND t.key = seen.key AND t.version >= seen.version AND t.shard <> ALL($11)
                       AND coalesce(t.partition_key, '') = coalesce(seen.partition_key, ''))
            OR EXISTS (SELECT
                         FROM duetime.archive AS a
                        WHERE a.queue = seen.queue AND a.key = seen.key AND a.version > seen.version AND a.shard <> ALL($11)
                          AND coalesce(a.partition_key, '') = coalesce(seen.partition_key, ''))
            OR EXISTS (SELECT
                         FROM (SELECT a.version, a.created_at
                                 FROM duetime.archive AS a
                                WHERE a.queue = seen.queue AND a.key = seen.key
                                  AND coalesce(a.partition_key, '') = coalesce(seen.partition_key, '')
                                  AND (a.state IN ('succeeded', 'dead')) = true AND a.finished_at > seen.created_at
                                  AND a.shard <> ALL($11)
                               OFFSET 0) AS ended                -- keeps the index of versions out of it
                        WHERE ended.version = seen.version AND ended.created_at > seen.created_at)) AS key_taken
  FROM (SELECT looked_at.*, row_number() OVER (ORDER BY due_at, id) AS nth
          FROM (SELECT id, state::text AS state, due_at, expires_at, queue, key, partition_key, version, created_at, drop_on,
                       octet_length(payload) + coalesce(octet_length(result), 0) AS other_bytes, history,
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
