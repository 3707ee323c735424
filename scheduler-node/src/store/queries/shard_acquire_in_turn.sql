-- Acquires the fences of shards that claims hold. Overlapping claims can renew a row's shared lock for ever. So this
-- statement waits for the table's lock instead, whose requests are served in their order (duetime.acquire_in_turn).
-- It gives up soon when a claim hangs.
-- Guard: as in shard_acquire.sql. Once the statement returns, no claim of an older epoch can commit.
-- $1 shard ids; $2 node name; $3 incarnation; $4 as in shard_acquire.sql. Returns each shard's new epoch.
SELECT id, epoch FROM duetime.acquire_in_turn($1, $2, $3, $4)
