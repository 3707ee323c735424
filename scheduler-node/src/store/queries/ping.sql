-- Checks that the database answers, and reads its clock.
SELECT clock_timestamp() AS now
