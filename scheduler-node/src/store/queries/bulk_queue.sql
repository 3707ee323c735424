-- The next queue by its name that has tasks that are not finished. $1 the name before. No row: there is none.
SELECT queue FROM duetime.task WHERE queue > $1 ORDER BY queue LIMIT 1
