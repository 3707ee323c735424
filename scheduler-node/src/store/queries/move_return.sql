-- Ends a move that was called off, in the source. Guard: the caller's epoch, and the shard is still leaving
-- (duetime.move_return).
-- $1 shard; $2 the caller's epoch. Returns whether the guard held.
SELECT duetime.move_return($1, $2) AS done
