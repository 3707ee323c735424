-- Makes tasks that nobody has claimed due now: task_run.sql for many.
-- Guard: as there, waiting, scheduled or ready. A row that somebody holds is passed over: see bulk_cancel.sql.
-- $1 ids. Returns those that are due now, with the moment they wake.
WITH free AS MATERIALIZED (
    SELECT t.id
      FROM unnest($1::uuid[]) AS asked (id)
      JOIN duetime.task AS t ON t.id = asked.id
     WHERE t.state::text IN ('waiting', 'scheduled', 'ready')
       FOR UPDATE OF t SKIP LOCKED
)
UPDATE duetime.task AS t
   SET state = CASE WHEN t.state = 'ready' THEN 'scheduled' ELSE t.state END, due_at = now(), wake_at = now()
  FROM free
 WHERE t.id = free.id
   AND t.state::text IN ('waiting', 'scheduled', 'ready')
RETURNING t.id, t.wake_at
