-- Finds the next queue by name that has tasks that finished without success. $1 the previous name. No row: there is
-- none.
-- The tasks may be left over from a shard that has moved; the look into the queue leaves them out.
SELECT queue FROM duetime.archive WHERE queue > $1 AND state <> 'succeeded' ORDER BY queue LIMIT 1
