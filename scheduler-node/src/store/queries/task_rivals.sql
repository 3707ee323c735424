-- Finds with which task a new one with each of these keys is compared, as duetime.task_put does: of the live tasks with
-- the key and of the finished ones that still answer for it, the one of the highest version.
-- The caller asks task_rivals_live.sql first, and asks here about the keys that no live task has, and those that are
-- asked by version. One statement sees one moment, so a task that was revived in between is found.
-- A succeeded or dead task answers until its window has passed; where versions are asked for, so does one that was
-- cancelled, expired or superseded. Of each of these two kinds, the statement looks at the ten that ended last, and
-- task_put at all. Where more ended within the window and not in the order of their versions, a submission for which
-- the highest version would answer may be refused.
-- Costs for each key one probe of task_key_version and one or two of archive_key_finished in each partition.
-- $1 to $5 and the rows: see task_rivals_live.sql; $6 ms for which a finished task answers and $7 whether versions are
-- asked for (pairwise with $1). `state` NULL: no task answers for the key. Of a finished task, only its state and its
-- version are read.
SELECT a.place, newest.state::text AS state, newest.version, newest.payload_bytes, newest.headers,
       EXISTS (SELECT FROM duetime.shard AS s WHERE s.id = coalesce(newest.shard, a.shard) AND s.status IN ('here', 'leaving')) AS is_here
  FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $6::bigint[], $7::boolean[])
       WITH ORDINALITY AS a (queue, partition_key, key, shard, window_ms, versions, place)
  LEFT JOIN LATERAL (
       SELECT either.*
         FROM ((SELECT t.shard, t.state, t.version, octet_length(t.payload) AS payload_bytes, t.headers, true AS live
                  FROM duetime.task AS t
                 WHERE t.queue = a.queue AND t.key = a.key AND coalesce(t.partition_key, '') = coalesce(a.partition_key, '')
                   AND t.shard <> ALL($5::int[])
                 ORDER BY t.version DESC
                 LIMIT 1)
               UNION ALL
               (SELECT f.shard, f.state, f.version, 0, NULL::jsonb, false
                  FROM (VALUES (true), (false)) AS c (holds)
                 CROSS JOIN LATERAL (
                       SELECT f.shard, f.state, f.version, f.created_at
                         FROM duetime.archive AS f
                        WHERE f.queue = a.queue AND f.key = a.key AND coalesce(f.partition_key, '') = coalesce(a.partition_key, '')
                          AND (f.state IN ('succeeded', 'dead')) = c.holds AND f.shard <> ALL($5::int[])
                          AND f.finished_at > statement_timestamp() - a.window_ms * interval '1 ms'
                        ORDER BY f.finished_at DESC
                        LIMIT 10) AS f
                 WHERE c.holds OR a.versions
                 ORDER BY f.version DESC, f.created_at DESC
                 LIMIT 1)) AS either
        ORDER BY either.version DESC, either.live DESC
        LIMIT 1) AS newest ON true
