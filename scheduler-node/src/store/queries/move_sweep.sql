-- Deletes rows that a shard left behind in its source. Guard: the shard is gone under exactly that epoch
-- (duetime.move_sweep).
-- $1 shard; $2 the epoch of the closed shard; $3 ids of task; $4 days and $5 ids of archive; $6 ids of received.
-- Returns whether the guard held.
SELECT duetime.move_sweep($1, $2, $3, $4, $5, $6) AS done
