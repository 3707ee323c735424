-- Gives the database $1 the standing $2. `since` stays when it has that standing already.
-- Returns the standing as it is then.
-- Guard: the statement waits for requests for moves that lock the row of their target, and they for it. A list of the
-- moves that begins after it has every move to a database that it drains.
INSERT INTO duetime.database_standing AS d (name, standing) VALUES ($1, $2)
    ON CONFLICT (name) DO UPDATE
    SET standing = excluded.standing,
        since = CASE WHEN d.standing = excluded.standing THEN d.since ELSE clock_timestamp() END
RETURNING name, standing, since
