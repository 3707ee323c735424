-- Keeps rows that cannot be tasks, with the reason.
-- Guard: not refused yet; who comes second changes nothing. A row on its way into another database may be a task there: it is refused
-- only when it is known what became of it there ($3). A row that is being cancelled is left alone (SKIP LOCKED), and comes again if
-- that is rolled back.
-- One that was cancelled cannot be a cancelled task either: nothing of it is left.
-- $1 ids, $2 reasons, pairwise; $3 see above. Returns the ids that were refused just now.
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
       SELECT w.id FROM duetime.inbox AS w WHERE w.id = ANY($1::uuid[]) AND w.error IS NULL AND ($3 OR w.leaving_at IS NULL) ORDER BY w.id FOR UPDATE SKIP LOCKED))
RETURNING i.id
