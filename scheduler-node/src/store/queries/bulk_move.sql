-- Moves tasks that nobody has claimed to another due time: task_change.sql for many, of the due time alone.
-- Guard: as there, waiting, scheduled or ready, and not expiring before it is due. A row that somebody holds is passed over: see
-- bulk_cancel.sql.
-- $1 ids, $2 to this moment, or (NULL) $3 so much later than each is due, at most to the year 9999; in the past means now.
-- Returns those that were moved, with the moment they wake.
WITH free AS MATERIALIZED (
    SELECT t.id, greatest(coalesce($2::timestamptz, least(t.due_at + $3::interval, '9999-12-31T23:59:59Z')), now()) AS due_at
      FROM unnest($1::uuid[]) AS asked (id)
      JOIN duetime.task AS t ON t.id = asked.id
     WHERE t.state::text IN ('waiting', 'scheduled', 'ready')
       FOR UPDATE OF t SKIP LOCKED
)
UPDATE duetime.task AS t
   SET state = CASE WHEN t.state = 'ready' THEN 'scheduled' ELSE t.state END, due_at = free.due_at, wake_at = free.due_at
  FROM free
 WHERE t.id = free.id
   AND t.state::text IN ('waiting', 'scheduled', 'ready')
   AND (t.expires_at > free.due_at) IS NOT FALSE                       -- NULL: it does not expire
RETURNING t.id, t.wake_at
