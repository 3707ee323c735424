-- Ends a move that was called off, in the source, where move_return.sql could not, in turn with the statements that
-- lock a fence. The notes of changes stay.
-- Guard: as in move_return.sql.
-- $1 shard; $2 the caller's epoch; $3 the number of this write. Returns whether the guard held.
SELECT duetime.move_return_in_turn($1, $2, $3) AS done
