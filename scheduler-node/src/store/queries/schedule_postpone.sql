-- Postpones the look at a schedule that cannot be decided at the moment.
-- Guard: the schedule still has the revision $2.
-- $1 name; $3 the delay.
UPDATE duetime.schedule SET wake_at = clock_timestamp() + $3 WHERE name = $1 AND revision = $2
