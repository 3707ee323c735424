-- Counts the schedules.
SELECT count(*) AS schedules FROM duetime.schedule
