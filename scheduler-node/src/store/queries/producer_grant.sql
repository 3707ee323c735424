-- Lets the role duetime_producer, if there is one, submit and cancel in SQL and do nothing else. Fails for a user who
-- does not own the schema and the functions. Can be run again.
DO $$
BEGIN
    -- One migration at a time: two concurrent grants in one database get in each other's way.
    PERFORM pg_advisory_xact_lock(hashtextextended('duetime_producer', 0));
    IF to_regrole('duetime_producer') IS NOT NULL THEN
        GRANT USAGE ON SCHEMA duetime TO duetime_producer;
        GRANT EXECUTE ON FUNCTION duetime.submit, duetime.cancel TO duetime_producer;
    END IF;
END
$$
