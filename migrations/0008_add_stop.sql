-- Tasks in flight that are to stop: the consumer learns of it with its next sign of life.
-- Locks: ACCESS EXCLUSIVE on task for the moment in which the column is added; no table is rewritten.

-- A caller sets it while the task is claimed. From then on a failure of that attempt ends the task as cancelled; its
-- success still counts.
ALTER TABLE duetime.task ADD COLUMN stopping boolean NOT NULL DEFAULT false;
