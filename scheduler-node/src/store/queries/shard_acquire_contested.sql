-- Takes the fences of some shards after shard_acquire waited in vain: for one claim that hangs, or for claims that overlap.
-- Guard: as in shard_acquire.
-- $1 shards, $2 node name, $3 incarnation, $4 in turn: waits for the table's lock, whose requests are served in their order, instead of
-- the rows' shared locks, which can be renewed for ever (duetime.acquire_contested). Returns each shard's new epoch.
SELECT id, epoch FROM duetime.acquire_contested($1, $2, $3, $4)
