-- Tells whether one of these processes ($1) has been in its transaction for more than 5 s: such a one, as of a backup,
-- rarely ends within the time that a try waits.
SELECT EXISTS (SELECT FROM pg_stat_activity
                WHERE pid = ANY($1::INTEGER[]) AND xact_start < clock_timestamp() - interval '5 seconds')
