-- Marks rows that go into another database, before they do.
-- Guard: the row is still there, and no open transaction cancels or submits it (SKIP LOCKED). From here on
-- duetime.cancel leaves the row alone.
-- `refused_at` and not `error`: see task_collect.sql.
-- $1 ids.
-- Returns the rows that may go, with the times at which each was submitted and cancelled (NULL: it is not cancelled).
-- A returned row can no longer be cancelled in this database.
UPDATE duetime.inbox AS i
   SET leaving_at = coalesce(i.leaving_at, clock_timestamp())
 WHERE i.id = ANY(ARRAY(
       SELECT w.id FROM duetime.inbox AS w WHERE w.id = ANY($1::uuid[]) AND w.refused_at IS NULL ORDER BY w.id FOR UPDATE SKIP LOCKED))
RETURNING i.id, i.submitted_at, i.cancelled_at
