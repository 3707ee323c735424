-- Changes the due times of unclaimed tasks, each to its own: task_change.sql for requests that came at the same time,
-- limited to the due time.
-- Guard: as in task_change.sql, `waiting`, `scheduled` or `ready`, and the task must not expire before it is due. The
-- statement skips a row that another transaction locks, as bulk_cancel.sql does.
-- $1 ids, each once; $2 the new due times (pairwise); a time in the past means now.
-- Returns the changed rows as they are now.
WITH free AS MATERIALIZED (
    SELECT t.id, greatest(asked.due_at, now()) AS due_at
      FROM unnest($1::uuid[], $2::timestamptz[]) AS asked (id, due_at)
      JOIN duetime.task AS t ON t.id = asked.id
     WHERE t.state::text IN ('waiting', 'scheduled', 'ready')     -- cast: see task_claim
       FOR NO KEY UPDATE OF t SKIP LOCKED
)
UPDATE duetime.task AS t
   SET state = CASE WHEN t.state = 'ready' THEN 'scheduled' ELSE t.state END, due_at = free.due_at,
       wake_at = CASE WHEN t.state = 'waiting' THEN least(free.due_at, now() + (0.5 + random() / 2) * interval '6 hours') ELSE free.due_at END
  FROM free
 WHERE t.id = free.id
   AND t.state::text IN ('waiting', 'scheduled', 'ready')
   AND (t.expires_at > free.due_at) IS NOT FALSE                       -- NULL: the task does not expire
RETURNING t.id, t.queue, t.state::text AS state, t.wake_at, t.due_at, t.expires_at, t.priority, t.attempt,
          t.max_attempts, t.payload, t.content_type, t.headers, t.key, t.version, t.partition_key, t.delivered_at, t.progress, t.worker,
          t.history, t.created_at, NULL::timestamptz AS finished_at, NULL::text AS result, NULL::bigint AS status_code, NULL::text AS status_msg,
          t.stopping
