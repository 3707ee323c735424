-- Reads one live task. It costs a tenth of task_read.sql, which opens each partition of the archive.
-- A shard that has moved to another database fails the statement (DT001), as in task_read.sql.
-- $1 id. No row: there is no live task; task_read.sql tells whether it has finished.
WITH placed AS MATERIALIZED (
    SELECT duetime.require_place(ARRAY[duetime.shard_in($1)]) AS is_here
)
SELECT t.id, t.queue, t.state::text AS state, t.wake_at, t.due_at, t.expires_at, t.priority, t.attempt,
       t.max_attempts, t.payload, t.content_type, t.headers, t.key, t.version, t.partition_key, t.delivered_at, t.progress, t.worker, t.history,
       t.created_at, NULL::timestamptz AS finished_at, NULL::text AS result, NULL::bigint AS status_code, NULL::text AS status_msg,
       t.stopping
  FROM duetime.task AS t
 WHERE t.id = $1 AND (SELECT is_here FROM placed)
