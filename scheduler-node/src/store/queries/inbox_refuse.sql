-- Refuses rows that cannot be tasks, and keeps them with the reason.
-- Guard: not refused yet; a second refusal changes nothing. A row on its way into another database may be a task
-- there, so it is refused only when its outcome there is known ($3). The statement skips a row that an open
-- transaction cancels (SKIP LOCKED); the row comes again if that transaction is rolled back.
-- A row that was cancelled cannot be a cancelled task either, so the statement deletes it.
-- `refused_at` and not `error`: see task_collect.sql.
-- $1 ids; $2 reasons (pairwise); $3 whether the outcome in the other database is known.
-- Returns the ids that this statement refused.
WITH gone AS (
    DELETE FROM duetime.inbox AS i
     WHERE i.cancelled_at IS NOT NULL
       AND i.id = ANY(ARRAY(
           SELECT w.id FROM duetime.inbox AS w WHERE w.id = ANY($1::uuid[]) AND ($3 OR w.leaving_at IS NULL) ORDER BY w.id FOR UPDATE SKIP LOCKED))
)
UPDATE duetime.inbox AS i
   SET error = f.error, refused_at = clock_timestamp(), leaving_at = NULL
  FROM unnest($1::uuid[], $2::text[]) AS f (id, error)
 WHERE i.id = f.id AND i.cancelled_at IS NULL
   AND i.id = ANY(ARRAY(
       SELECT w.id FROM duetime.inbox AS w WHERE w.id = ANY($1::uuid[]) AND w.refused_at IS NULL AND ($3 OR w.leaving_at IS NULL) ORDER BY w.id FOR UPDATE SKIP LOCKED))
RETURNING i.id
