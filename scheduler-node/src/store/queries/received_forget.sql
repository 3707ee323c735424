-- Deletes notes of rows that came from an inbox, as a rule another database's, so long ago that the inbox no longer
-- holds them; or notes of submissions that replaced a task (duetime.task_put).
-- Guard: $2 exceeds the age of the oldest row in that inbox. A row that is still there was received, if at all, less
-- than $2 ago. For replacements, $2 exceeds the time within which a submission is sent again.
-- The statement's own time bounds the search in the index; clock_timestamp() is volatile and cannot.
-- $1 the source database, or `(replaced)`; $2 the age; $3 the limit of rows. Returns the deleted ids.
DELETE FROM duetime.received AS r
 WHERE r.id = ANY(ARRAY(
       SELECT o.id FROM duetime.received AS o
        WHERE o.source = $1 AND o.received_at < statement_timestamp() - $2::interval
        ORDER BY o.received_at LIMIT $3 FOR UPDATE SKIP LOCKED))
RETURNING id
