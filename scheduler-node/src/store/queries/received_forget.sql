-- Forgets what came from another database's inbox so long ago that it cannot be there any more.
-- Guard: $2 is more than the age of the oldest row in that inbox: whatever is there was received, if at all, later than that.
-- $1 the database it came from, $2 the age, $3 at the most so many. Returns the ids that were deleted.
DELETE FROM duetime.received AS r
 WHERE r.id = ANY(ARRAY(
       SELECT o.id FROM duetime.received AS o
        WHERE o.source = $1 AND o.received_at < clock_timestamp() - $2::interval
        ORDER BY o.received_at LIMIT $3 FOR UPDATE SKIP LOCKED))
RETURNING id
