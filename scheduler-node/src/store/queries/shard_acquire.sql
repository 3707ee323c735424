-- Takes the fence of shards this node has been given: a new epoch for each, minted here and nowhere else.
-- Guard: none; the lease decides who should own, and this row decides who does. Waits for claims in flight, because they
-- hold the row FOR SHARE; once it returns, no claim of an older epoch can commit. Rows are locked in the order of their ids.
-- $1 shard ids, $2 node name, $3 incarnation. Returns each shard's new epoch.
WITH wanted AS MATERIALIZED (
    SELECT id FROM duetime.shard WHERE id = ANY($1::int[]) ORDER BY id FOR NO KEY UPDATE
)
UPDATE duetime.shard AS s
   SET epoch = s.epoch + 1, owner = $2, incarnation = $3, acquired_at = clock_timestamp()
  FROM wanted
 WHERE s.id = wanted.id
RETURNING s.id, s.epoch
