-- How many schedules there are.
SELECT count(*) AS schedules FROM duetime.schedule
