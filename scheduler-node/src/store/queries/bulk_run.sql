-- Makes unclaimed tasks due now: task_run.sql for a batch.
-- Guard: as in task_run.sql, `waiting`, `scheduled` or `ready`, and the expiry has not passed. The statement skips a
-- row that another transaction locks, as bulk_cancel.sql does.
-- $1 ids. Returns the tasks that are due now, with the time at which each wakes.
WITH free AS MATERIALIZED (
    SELECT t.id
      FROM unnest($1::uuid[]) AS asked (id)
      JOIN duetime.task AS t ON t.id = asked.id
     WHERE t.state::text IN ('waiting', 'scheduled', 'ready')
       FOR UPDATE OF t SKIP LOCKED
)
UPDATE duetime.task AS t
   SET state = CASE WHEN t.state = 'ready' THEN 'scheduled' ELSE t.state END, due_at = least(t.due_at, now()),
       wake_at = now()
  FROM free
 WHERE t.id = free.id
   AND t.state::text IN ('waiting', 'scheduled', 'ready')
   AND (t.expires_at > clock_timestamp()) IS NOT FALSE                 -- NULL: the task does not expire
RETURNING t.id, t.wake_at
