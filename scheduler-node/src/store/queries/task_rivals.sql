-- Finds the newest task with each of these keys: task_find.sql, for many keys. It tells of each task what decides
-- whether it answers for a new one with its key.
-- The caller asks task_rivals_live.sql first, and asks here about the keys that no live task has. One statement sees
-- one moment, so a task that was revived in between is found.
-- Costs for each key one probe of task_key_version and one of archive_key_version in each partition.
-- $1 to $5 and the rows: see task_rivals_live.sql. `state` NULL: no task has the key. `finished_at` NULL: the task is a
-- live one.
SELECT a.place, newest.state::text AS state, newest.version, newest.payload_bytes, newest.headers, newest.finished_at,
       EXISTS (SELECT FROM duetime.shard AS s WHERE s.id = coalesce(newest.shard, a.shard) AND s.status IN ('here', 'leaving')) AS is_here
  FROM unnest($1::text[], $2::text[], $3::text[], $4::int[]) WITH ORDINALITY AS a (queue, partition_key, key, shard, place)
  LEFT JOIN LATERAL (
       SELECT either.*
         FROM ((SELECT t.shard, t.state, t.version, octet_length(t.payload) AS payload_bytes, t.headers,
                       NULL::timestamptz AS finished_at, true AS live
                  FROM duetime.task AS t
                 WHERE t.queue = a.queue AND t.key = a.key AND coalesce(t.partition_key, '') = coalesce(a.partition_key, '')
                   AND t.shard <> ALL($5::int[])
                 ORDER BY t.version DESC
                 LIMIT 1)
               UNION ALL
               (SELECT f.shard, f.state, f.version, octet_length(f.payload), f.headers, f.finished_at, false
                  FROM duetime.archive AS f
                 WHERE f.queue = a.queue AND f.key = a.key AND coalesce(f.partition_key, '') = coalesce(a.partition_key, '')
                   AND f.shard <> ALL($5::int[])
                 ORDER BY f.version DESC, f.created_at DESC
                 LIMIT 1)) AS either
        ORDER BY either.live DESC
        LIMIT 1) AS newest ON true
