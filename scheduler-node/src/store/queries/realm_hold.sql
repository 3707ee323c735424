-- Makes this database serve a realm, or goes on doing so. It serves another one at most until that has been silent for
-- long, or at once if the caller knew that one under the same keys. All times are the server's own.
-- The commit does not wait for a standby: a note that a failover loses is written again in seconds.
-- $1 the realm, $2 the realms that it has replaced, $3 the age at which a note is refreshed, $4 the silence after which
-- another realm may take over. Returns the realm that the database serves. No row: another node has made the note at
-- this moment.
WITH held AS (
    INSERT INTO duetime.realm AS r (realm) VALUES ($1)
        ON CONFLICT (single) DO UPDATE
       SET realm = excluded.realm, seen_at = clock_timestamp()
     WHERE CASE WHEN r.realm = excluded.realm THEN r.seen_at NOT BETWEEN clock_timestamp() - $3::interval AND clock_timestamp()
                ELSE r.realm = ANY($2::uuid[]) OR r.seen_at < clock_timestamp() - $4::interval END
    RETURNING r.realm)
SELECT realm, set_config('synchronous_commit', 'local', true) AS waits_for FROM held
 UNION ALL
SELECT realm, NULL FROM duetime.realm WHERE NOT EXISTS (SELECT FROM held)
