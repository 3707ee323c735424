-- Begins a move in the source where move_leave.sql could not, in turn with the statements that lock a fence.
-- Guard: as in move_leave.sql.
-- $1 shard; $2 the caller's epoch in the source; $3 the number of this write. Returns whether the shard is leaving.
SELECT duetime.move_leave_in_turn($1, $2, $3) AS done
