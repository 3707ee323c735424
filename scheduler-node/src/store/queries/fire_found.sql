-- Deletes a decided fire time whose key another task has. That task becomes the schedule's last one in the same moment,
-- so that no decision takes an id that no task has for a task that has finished.
-- Guard: the schedule's last task is still that of the fire time. A schedule that was put anew, or has gone on, keeps
-- its own.
-- $1 the id of the task as decided; $2 the schedule; $3 the task that has the key.
WITH known AS (
    UPDATE duetime.schedule SET last_task = $3 WHERE name = $2 AND last_task = $1
)
DELETE FROM duetime.fire WHERE id = $1
