-- What a waiting task no longer waits for.
-- Locks: ACCESS EXCLUSIVE on task for the moment in which the column is added; no table is rewritten.

-- Names that have succeeded move here from depends_on when the task is looked at. That task may be dropped after its time; the success counts.
ALTER TABLE duetime.task ADD COLUMN depends_met text[];
