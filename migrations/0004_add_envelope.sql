-- Locks: ACCESS EXCLUSIVE on the tasks and on the archive, for an instant: a new column without a default rewrites nothing. It
-- waits for statements that run, and others wait behind it for as long.

-- How a message goes on that only waits here: exchange, routing key and every property. Null: as the queue says.
ALTER TABLE duetime.task ADD COLUMN envelope jsonb;
ALTER TABLE duetime.archive ADD COLUMN envelope jsonb;
