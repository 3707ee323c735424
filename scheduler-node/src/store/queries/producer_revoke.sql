-- Takes from the role duetime_producer the right to submit in SQL here, if this user may. It may still cancel. Can be
-- run again; producer_return.sql gives the right back.
DO $$
BEGIN
    -- One change of these rights at a time, as in producer_grant.sql.
    PERFORM pg_advisory_xact_lock(hashtextextended('duetime_producer', 0));
    IF to_regrole('duetime_producer') IS NOT NULL THEN
        REVOKE EXECUTE ON FUNCTION duetime.submit FROM duetime_producer;
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    NULL;
END
$$
