-- Takes a copy over in the target. Guard: the shard arrives, and no newer owner fills it; a gate guards the shard
-- (duetime.move_fill).
-- $1 shard; $2 the caller's epoch in the source; $3 the number of the caller's last write. Returns whether the caller
-- fills the shard now.
SELECT duetime.move_fill($1, $2, $3) AS done
