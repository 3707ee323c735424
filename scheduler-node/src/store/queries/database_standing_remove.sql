-- Removes the database $1, if it drains since exactly $2: the caller has found it empty after it read that moment, and
-- no move to it can have been added since then.
-- Returns its standing; no row: another request has changed it.
UPDATE duetime.database_standing SET standing = 'removed', since = clock_timestamp()
 WHERE name = $1 AND standing = 'draining' AND since = $2
RETURNING name, standing, since
