-- Has a schedule looked at again later: at the moment it cannot be decided.
-- Guard: it is as it was read (revision $2).
-- $1 name, $3 how much later.
UPDATE duetime.schedule SET wake_at = clock_timestamp() + $3 WHERE name = $1 AND revision = $2
