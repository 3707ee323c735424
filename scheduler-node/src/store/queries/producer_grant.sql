-- Creates the role duetime_producer if this user may, and lets it submit and cancel in SQL and do nothing else. Can
-- be run again.
-- The role belongs to the whole server, so the migration of another database may have created it, or may be creating
-- it now.
DO $$
BEGIN
    -- One migration at a time: two concurrent grants in one database get in each other's way.
    PERFORM pg_advisory_xact_lock(hashtextextended('duetime_producer', 0));
    IF to_regrole('duetime_producer') IS NULL THEN
        BEGIN
            CREATE ROLE duetime_producer NOLOGIN;
        EXCEPTION WHEN insufficient_privilege OR duplicate_object OR unique_violation THEN
            NULL;
        END;
    END IF;
    IF to_regrole('duetime_producer') IS NOT NULL THEN
        GRANT USAGE ON SCHEMA duetime TO duetime_producer;
        GRANT EXECUTE ON FUNCTION duetime.submit, duetime.cancel TO duetime_producer;
    END IF;
END
$$
