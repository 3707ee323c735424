-- The dependencies of a waiting task that have succeeded already.
-- Locks: ACCESS EXCLUSIVE on task for the moment in which the column is added; no table is rewritten.

-- A check of the task moves names that have succeeded here from depends_on. A task of such a name may be dropped
-- after its time; its success counts.
ALTER TABLE duetime.task ADD COLUMN depends_met text[];
