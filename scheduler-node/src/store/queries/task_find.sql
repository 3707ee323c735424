-- Finds the newest task with this key: a live one if there is one, otherwise one that the archive still keeps.
-- The caller asks task_find_live.sql first.
-- Costs one probe of task_key_version and one of archive_key_version in each partition, however often the key was
-- used.
-- A shard that has moved to another database fails the statement (DT001), as in task_find_live.sql.
-- $1 queue; $2 partition key (NULL: none); $3 key; $4 shards to leave out, because their place is another
-- database. Returns the task's id.
WITH newest AS MATERIALIZED (
    SELECT either.id, either.shard
      FROM ((SELECT t.id, t.shard, true AS live
               FROM duetime.task AS t
              WHERE t.queue = $1 AND t.key = $3 AND coalesce(t.partition_key, '') = coalesce($2::text, '')
                AND t.shard <> ALL($4::int[])
              ORDER BY t.version DESC
              LIMIT 1)
            UNION ALL
            (SELECT a.id, a.shard, false
               FROM duetime.archive AS a
              WHERE a.queue = $1 AND a.key = $3 AND coalesce(a.partition_key, '') = coalesce($2::text, '')
                AND a.shard <> ALL($4::int[])
              ORDER BY a.version DESC, a.created_at DESC
              LIMIT 1)) AS either
     ORDER BY either.live DESC
     LIMIT 1
)
SELECT t.id FROM newest AS t WHERE duetime.require_place(ARRAY[t.shard])
