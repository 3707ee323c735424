-- Finds the next queue by name that has finished tasks. $1 the previous name. No row: there is none.
SELECT queue FROM duetime.archive WHERE queue > $1 ORDER BY queue LIMIT 1
