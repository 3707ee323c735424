-- Ends a move that was called off, in the source. Guard: the caller's epoch, the shard is open, and no later write of
-- the caller came before (duetime.move_return).
-- $1 shard; $2 the caller's epoch; $3 the number of this write. Returns whether the guard held.
SELECT duetime.move_return($1, $2, $3) AS done
