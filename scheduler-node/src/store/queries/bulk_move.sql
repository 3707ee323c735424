-- Moves unclaimed tasks to another due time: task_change.sql for a batch, limited to the due time.
-- Guard: as in task_change.sql, `waiting`, `scheduled` or `ready`, and the task must not expire before it is due. The
-- statement skips a row that another transaction locks, as bulk_cancel.sql does.
-- $1 ids; $2 the new due time, or (NULL) $3 the interval by which each due time moves, at most to the end of the year
-- 9999; a time in the past means now.
-- Returns the moved tasks, with the time at which each wakes.
WITH free AS MATERIALIZED (
    SELECT t.id, greatest(coalesce($2::timestamptz, least(t.due_at + $3::interval, '9999-12-31T23:59:59Z')), now()) AS due_at
      FROM unnest($1::uuid[]) AS asked (id)
      JOIN duetime.task AS t ON t.id = asked.id
     WHERE t.state::text IN ('waiting', 'scheduled', 'ready')
       FOR UPDATE OF t SKIP LOCKED
)
UPDATE duetime.task AS t
   SET state = CASE WHEN t.state = 'ready' THEN 'scheduled' ELSE t.state END, due_at = free.due_at,
       wake_at = CASE WHEN t.state = 'waiting' THEN least(free.due_at, now() + (0.5 + random() / 2) * interval '6 hours') ELSE free.due_at END
  FROM free
 WHERE t.id = free.id
   AND t.state::text IN ('waiting', 'scheduled', 'ready')
   AND (t.expires_at > free.due_at) IS NOT FALSE                       -- NULL: the task does not expire
RETURNING t.id, t.wake_at
