-- A task that is out and is to stop: its consumer is told with its next sign of life.
-- Locks: ACCESS EXCLUSIVE on task for the moment in which the column is added; no table is rewritten.

-- Set by hand while the task is claimed. From then on a failure of that attempt ends the task as cancelled; its success still counts.
ALTER TABLE duetime.task ADD COLUMN stopping boolean NOT NULL DEFAULT false;
