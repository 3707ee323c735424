-- Takes the fences of shards that claims hold. Claims that overlap can renew a row's shared lock for ever, so this waits for the table's
-- lock instead, whose requests are served in their order (duetime.acquire_in_turn). It gives up soon when a claim hangs.
-- Guard: as in shard_acquire.
-- $1 shard ids, $2 node name, $3 incarnation. Returns each shard's new epoch.
SELECT id, epoch FROM duetime.acquire_in_turn($1, $2, $3)
