-- Forgets a schedule. Tasks that are made or decided go on.
-- $1 name. Returns its name; no row: there was no such schedule.
DELETE FROM duetime.schedule WHERE name = $1 RETURNING name
