-- Counts the schedules, and those whose `since` lies further ahead of the clock than $1.
SELECT count(*) AS schedules, count(*) FILTER (WHERE since > clock_timestamp() + $1::interval) AS ahead FROM duetime.schedule
