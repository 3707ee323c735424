-- Deletes decided fire times whose tasks are written.
-- $1 the tasks' ids.
DELETE FROM duetime.fire WHERE id = ANY($1::uuid[])
