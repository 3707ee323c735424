-- Deletes rows that were refused long ago, a few at a time.
-- $1 how long they are kept, $2 at the most so many. Returns the ids that were deleted.
DELETE FROM duetime.inbox AS i
 WHERE i.id = ANY(ARRAY(
       SELECT w.id FROM duetime.inbox AS w
        WHERE w.error IS NOT NULL AND w.refused_at < clock_timestamp() - $1::interval
        ORDER BY w.refused_at LIMIT $2 FOR UPDATE SKIP LOCKED))
RETURNING id
