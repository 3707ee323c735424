-- Marks rows that go into another database, before they do.
-- Guard: still there, and not being cancelled or submitted at the moment (SKIP LOCKED). From here on duetime.cancel leaves them alone.
-- $1 ids. Returns those that may go, and when each was submitted and cancelled (NULL: it is not). After this it cannot be cancelled here.
UPDATE duetime.inbox AS i
   SET leaving_at = coalesce(i.leaving_at, clock_timestamp())
 WHERE i.id = ANY(ARRAY(
       SELECT w.id FROM duetime.inbox AS w WHERE w.id = ANY($1::uuid[]) AND w.error IS NULL ORDER BY w.id FOR UPDATE SKIP LOCKED))
RETURNING i.id, i.submitted_at, i.cancelled_at
