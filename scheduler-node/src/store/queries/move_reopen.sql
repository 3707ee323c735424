-- Opens a closed shard in its source again, because the last part of its move has not ended.
-- Guard: the caller owns the closed shard. No open in the target can succeed any more: none has begun, or the target is
-- filled under the epoch that this statement gives the source (move_refuse_open in moves.rs).
-- $1 shard; $2 the epoch of the close; $3 node name; $4 incarnation. Returns the new epoch; no row: the guard did not
-- hold.
UPDATE duetime.shard
   SET status = 'leaving', epoch = epoch + 1
 WHERE id = $1 AND status = 'gone' AND epoch = $2 AND owner = $3 AND incarnation = $4
RETURNING epoch
