-- Sets how much ANALYZE reads of the busy tables that a vacuum held locked during the migration
-- (0019_spare_analyze.sql). Leaves out a table that is locked now; takes some seconds at most.
SELECT duetime.spare_busy_tables()
