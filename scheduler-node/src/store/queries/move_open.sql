-- Opens a shard in its target: from here on its tasks are there.
-- Guard: the shard arrives, and the caller fills it. The new epoch is above every epoch of the source, also those of
-- nodes that take the fence of the closed shard there before they hear of the open: an epoch has one owner. They
-- hear of it within seconds, so 1,000 acquires are far more than there can be.
-- $1 shard; $2 the epoch under which the caller fills the shard; $3 the epoch of the closed shard in the source; $4
-- node name; $5 incarnation. Returns the new epoch; no row: the guard did not hold.
UPDATE duetime.shard
   SET status = 'here', epoch = greatest(epoch, $3) + 1000, owner = $4, incarnation = $5, acquired_at = clock_timestamp()
 WHERE id = $1 AND status = 'arriving' AND move_epoch = $2
RETURNING epoch
