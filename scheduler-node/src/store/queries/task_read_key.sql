-- Reads the newest live task with this key, in one statement instead of task_find_live.sql and task_read_live.sql.
-- A shard that has moved to another database fails the statement (DT001), as in task_read.sql.
-- $1 queue; $2 partition key (NULL: none); $3 key; $4 shards to leave out, because their place is another database.
-- No row: no live task has the key; task_find.sql tells whether a finished one has.
WITH newest AS MATERIALIZED (
    SELECT t.*
      FROM duetime.task AS t
     WHERE t.queue = $1 AND t.key = $3 AND coalesce(t.partition_key, '') = coalesce($2::text, '')
       AND t.shard <> ALL($4::int[])
     ORDER BY t.version DESC
     LIMIT 1
)
SELECT t.id, t.queue, t.state::text AS state, t.wake_at, t.due_at, t.expires_at, t.priority, t.attempt,
       t.max_attempts, t.payload, t.content_type, t.headers, t.key, t.version, t.partition_key, t.delivered_at, t.progress, t.worker, t.history,
       t.created_at, NULL::timestamptz AS finished_at, NULL::text AS result, NULL::bigint AS status_code, NULL::text AS status_msg,
       t.stopping
  FROM newest AS t
 WHERE duetime.require_place(ARRAY[t.shard])
