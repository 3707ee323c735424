-- Begins a move in the target, or takes one over. Guard: a gate that guards the shard (duetime.move_arrive).
-- $1 shard; $2 the caller's epoch in the source. Returns whether the caller fills the shard now.
SELECT duetime.move_arrive($1, $2) AS done
