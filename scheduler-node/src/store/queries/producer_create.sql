-- Creates the role duetime_producer, if it is missing and this user may. Can be run again.
-- The role belongs to the whole server, so the migration of another database may have created it, or may be creating
-- it now.
DO $$
BEGIN
    IF to_regrole('duetime_producer') IS NULL THEN
        CREATE ROLE duetime_producer NOLOGIN;
    END IF;
EXCEPTION WHEN insufficient_privilege OR duplicate_object OR unique_violation THEN
    NULL;
END
$$
