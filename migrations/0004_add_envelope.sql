-- Locks: ACCESS EXCLUSIVE on the tasks and on the archive, for an instant: a new column without a default rewrites
-- nothing. The migration waits for statements that run, and later statements wait behind it for as long.

-- The envelope of a message that only waits here and then goes on: exchange, routing key and every property.
-- NULL: the queue decides where the task goes.
ALTER TABLE duetime.task ADD COLUMN envelope jsonb;
ALTER TABLE duetime.archive ADD COLUMN envelope jsonb;
