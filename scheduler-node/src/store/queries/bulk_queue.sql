-- Finds the next queue by name that has unfinished tasks. $1 the previous name. No row: there is none.
-- The tasks may be left over from a shard that has moved; the look into the queue leaves them out.
SELECT queue FROM duetime.task WHERE queue > $1 ORDER BY queue LIMIT 1
