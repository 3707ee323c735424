-- Gives the role duetime_producer the right back that producer_revoke.sql took, if this user may and the role lacks it.
-- Can be run again.
DO $$
BEGIN
    -- One change of these rights at a time, as in producer_grant.sql.
    PERFORM pg_advisory_xact_lock(hashtextextended('duetime_producer', 0));
    IF to_regrole('duetime_producer') IS NOT NULL
       AND NOT has_function_privilege('duetime_producer', 'duetime.submit'::regproc::oid, 'EXECUTE') THEN
        GRANT EXECUTE ON FUNCTION duetime.submit TO duetime_producer;
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    NULL;
END
$$
