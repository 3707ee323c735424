-- Marks a claimed task as stopping; its consumer learns of it with its next sign of life.
-- Guard: claimed and not finished. A failure that is written at this moment either comes first or second. If it comes
-- first, the task is `scheduled` and not stopped here; if it comes second, it finds `stopping`.
-- $1 id. Returns the row as it is now; no row: the guard did not hold.
UPDATE duetime.task AS t
   SET stopping = true
 WHERE t.id = $1
   AND t.state IN ('dispatching', 'delivered', 'running')
RETURNING t.id, t.queue, t.state::text AS state, t.wake_at, t.due_at, t.expires_at, t.priority, t.attempt,
          t.max_attempts, t.payload, t.content_type, t.headers, t.key, t.version, t.partition_key, t.delivered_at, t.progress, t.worker,
          t.history, t.created_at, NULL::timestamptz AS finished_at, NULL::text AS result, NULL::bigint AS status_code, NULL::text AS status_msg,
          t.stopping
