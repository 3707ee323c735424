-- Makes an unclaimed task due now; a task that waits for others goes on waiting for them. One that is due already keeps
-- its due time, and with it its place among the tasks that wait for room.
-- Guard: `waiting`, `scheduled` or `ready`, and the expiry has not passed: no claim takes an expired task.
-- $1 id. Returns the row as it is now; no row: the guard did not hold.
UPDATE duetime.task AS t
   SET state = CASE WHEN t.state = 'ready' THEN 'scheduled' ELSE t.state END, due_at = least(t.due_at, now()),
       wake_at = now()
 WHERE t.id = $1
   AND t.state IN ('waiting', 'scheduled', 'ready')
   AND (t.expires_at > clock_timestamp()) IS NOT FALSE                 -- NULL: the task does not expire
RETURNING t.id, t.queue, t.state::text AS state, t.wake_at, t.due_at, t.expires_at, t.priority, t.attempt,
          t.max_attempts, t.payload, t.content_type, t.headers, t.key, t.version, t.partition_key, t.delivered_at, t.progress, t.worker,
          t.history, t.created_at, NULL::timestamptz AS finished_at, NULL::text AS result, NULL::bigint AS status_code, NULL::text AS status_msg,
          t.stopping
