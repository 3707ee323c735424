-- Opens a closed shard in its source again, because the last part of its move did not end in time.
-- Guard: the caller closed it, and has not begun to open it in the target.
-- $1 shard; $2 the epoch of the close; $3 node name; $4 incarnation. Returns the new epoch; no row: the guard did not
-- hold.
UPDATE duetime.shard
   SET status = 'leaving', epoch = epoch + 1
 WHERE id = $1 AND status = 'gone' AND epoch = $2 AND owner = $3 AND incarnation = $4
RETURNING epoch
