-- Locks: ACCESS EXCLUSIVE on duetime.token for an instant, and SHARE on duetime.schedule while a small index is built:
-- changes of schedules wait. duetime.task stays as it is.

-- Limits of the token; NULL: the token has none of its own.
ALTER TABLE duetime.token ADD COLUMN limits jsonb;

-- Counts the schedules of a queue.
CREATE INDEX schedule_queue ON duetime.schedule ((rules ->> 'queue'));
