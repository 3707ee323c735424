-- Reads finished tasks with everything that an export needs. $1 the days on which the archive may drop them; $2 their
-- ids (pairwise). A task that was revived meanwhile does not come back.
SELECT a.id, a.queue, a.state::text AS state, a.wake_at, a.due_at, a.expires_at, a.priority, a.attempt,
       a.max_attempts, a.payload, a.content_type, a.headers, a.key, a.version, a.partition_key, a.delivered_at, a.progress, a.worker, a.history,
       a.created_at, a.finished_at, a.result, a.status_code, a.status_msg, false AS stopping,
       a.timeout_ms, a.retry, a.envelope, NULL::text[] AS depends_on
  FROM unnest($1::date[], $2::uuid[]) AS asked (drop_on, id)
  JOIN duetime.archive AS a ON a.drop_on = asked.drop_on AND a.id = asked.id
 ORDER BY a.due_at, a.id
