-- Closes a leaving shard that move_close.sql could not close, in turn with the statements that lock a fence.
-- Guard: as in move_close.sql.
-- $1 shard; $2 the caller's epoch; $3 the number of this write. Returns the new epoch; NULL: the guard did not hold.
SELECT duetime.move_close_in_turn($1, $2, $3) AS epoch
