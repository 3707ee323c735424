-- Deletes rows that were refused long ago, in small batches.
-- The statement's own time bounds the search in the index; clock_timestamp() is volatile and cannot.
-- $1 how long a refused row is kept; $2 the limit of rows. Returns the deleted ids.
DELETE FROM duetime.inbox AS i
 WHERE i.id = ANY(ARRAY(
       SELECT w.id FROM duetime.inbox AS w
        WHERE w.error IS NOT NULL AND w.refused_at < statement_timestamp() - $1::interval
        ORDER BY w.refused_at LIMIT $2 FOR UPDATE SKIP LOCKED))
RETURNING id
