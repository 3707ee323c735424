-- Begins a move in the source. Guard: the caller's epoch, and a gate that guards the shard (duetime.move_leave).
-- $1 shard; $2 the caller's epoch in the source. Returns whether the shard is leaving.
SELECT duetime.move_leave($1, $2) AS done
