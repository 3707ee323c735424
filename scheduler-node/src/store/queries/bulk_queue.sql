-- Finds the next queue by name that has unfinished tasks. $1 the previous name. No row: there is none.
SELECT queue FROM duetime.task WHERE queue > $1 ORDER BY queue LIMIT 1
