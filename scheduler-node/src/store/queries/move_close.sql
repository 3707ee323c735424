-- Closes a leaving shard in its source. Guard: the caller's epoch, and no later write of the caller came before; waits
-- for writers in flight, but gives up soon (duetime.move_close).
-- $1 shard; $2 the caller's epoch; $3 the number of this write. Returns the new epoch; NULL: the guard did not hold.
SELECT duetime.move_close($1, $2, $3) AS epoch
