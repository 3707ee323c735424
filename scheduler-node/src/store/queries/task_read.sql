-- Reads one task, wherever it is. One statement sees one moment, in which a task is in exactly one of the two tables.
-- The caller asks task_read_live.sql first.
-- Probes the archive partition by partition, because its primary key begins with the day: each costs one probe.
-- A shard that has moved to another database fails the statement (DT001): what is left here may be old.
-- $1 id. No row: there is no such task, or it was dropped after its time.
WITH placed AS MATERIALIZED (
    SELECT duetime.require_place(ARRAY[duetime.shard_in($1)]) AS is_here
)
SELECT t.id, t.queue, t.state::text AS state, t.wake_at, t.due_at, t.expires_at, t.priority, t.attempt,
       t.max_attempts, t.payload, t.content_type, t.headers, t.key, t.version, t.partition_key, t.delivered_at, t.progress, t.worker, t.history,
       t.created_at, NULL::timestamptz AS finished_at, NULL::text AS result, NULL::bigint AS status_code, NULL::text AS status_msg,
       t.stopping
  FROM duetime.task AS t
 WHERE t.id = $1 AND (SELECT is_here FROM placed)
UNION ALL
SELECT a.id, a.queue, a.state::text, a.wake_at, a.due_at, a.expires_at, a.priority, a.attempt,
       a.max_attempts, a.payload, a.content_type, a.headers, a.key, a.version, a.partition_key, a.delivered_at, a.progress, a.worker, a.history,
       a.created_at, a.finished_at, a.result, a.status_code, a.status_msg, false
  FROM (SELECT to_date(right(c.relname, 8), 'YYYYMMDD') AS drop_on
          FROM pg_inherits AS i
          JOIN pg_class AS c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'duetime.archive'::regclass AND NOT i.inhdetachpending) AS day
 CROSS JOIN LATERAL (SELECT * FROM duetime.archive WHERE drop_on = day.drop_on AND id = $1 LIMIT 1) AS a
 WHERE (SELECT is_here FROM placed)
