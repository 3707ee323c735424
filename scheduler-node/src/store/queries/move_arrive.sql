-- Begins a move in the target, or takes one over. Guard: a gate that guards the shard (duetime.move_arrive).
-- $1 shard; $2 the caller's epoch in the source; $3 the number of the caller's last write. Returns whether the caller
-- fills the shard now.
SELECT duetime.move_arrive($1, $2, $3) AS done
