-- Forgets a schedule. Tasks that are made or decided go on.
-- $1 name, $2 the revision that was read, or NULL: whichever. Returns its name; no row: there was no such schedule.
-- Guard: with $2, one that took its place since it was read stays.
DELETE FROM duetime.schedule WHERE name = $1 AND ($2::bigint IS NULL OR revision = $2) RETURNING name
