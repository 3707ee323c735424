-- The next queue by its name that has finished tasks. $1 the name before. No row: there is none.
SELECT queue FROM duetime.archive WHERE queue > $1 ORDER BY queue LIMIT 1
