-- Begins a move in the target. Guard: the target is still as the caller has seen it, and a gate guards the shard
-- (duetime.move_arrive).
-- $1 shard; $2 the caller's epoch in the source; $3 the number of the caller's last write; $4 epoch, $5 move_epoch and
-- $6 move_write of the fence that the caller has seen in the target (NULL: none). Returns whether the guard held.
SELECT duetime.move_arrive($1, $2, $3, $4, $5, $6) AS done
