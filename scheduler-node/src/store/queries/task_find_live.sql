-- Finds the newest live task with this key. It costs a tenth of task_find.sql, which opens each partition of the
-- archive.
-- A shard that has moved to another database fails the statement (DT001): the task that is left here may have ended
-- there, and the key may be another task's by now.
-- $1 queue; $2 partition key (NULL: none); $3 key; $4 shards to leave out, because their place is another database.
-- Returns the task's id. No row: no live task has the key; task_find.sql tells whether a finished one has.
WITH newest AS MATERIALIZED (
    SELECT t.id, t.shard
      FROM duetime.task AS t
     WHERE t.queue = $1 AND t.key = $3 AND coalesce(t.partition_key, '') = coalesce($2::text, '')
       AND t.shard <> ALL($4::int[])
     ORDER BY t.version DESC
     LIMIT 1
)
SELECT t.id FROM newest AS t WHERE duetime.require_place(ARRAY[t.shard])
