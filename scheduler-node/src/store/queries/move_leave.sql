-- Begins a move in the source. Guard: the caller's epoch, no later write of the caller came before, and a gate guards
-- the shard (duetime.move_leave).
-- $1 shard; $2 the caller's epoch in the source; $3 the number of this write. Returns whether the shard is leaving.
SELECT duetime.move_leave($1, $2, $3) AS done
