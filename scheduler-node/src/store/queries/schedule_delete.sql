-- Deletes a schedule. Its tasks that exist or are decided go on.
-- $1 name; $2 the revision that the caller read, or NULL: any. Returns the name; no row: there was no such schedule.
-- Guard: with $2, a schedule that was written or made anew since the caller's read stays.
DELETE FROM duetime.schedule WHERE name = $1 AND ($2::bigint IS NULL OR revision = $2) RETURNING name
