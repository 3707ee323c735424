-- Is the database there, and what time is it?
SELECT clock_timestamp() AS now
