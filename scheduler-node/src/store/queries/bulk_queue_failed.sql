-- Finds the next queue by name that has tasks that finished without success. $1 the previous name. No row: there is
-- none.
SELECT queue FROM duetime.archive WHERE queue > $1 AND state <> 'succeeded' ORDER BY queue LIMIT 1
