-- Acquires the fences of those of some shards that no claim holds at this moment.
-- Guard: as in shard_acquire.sql. It skips a fence that a claim holds instead of waiting for it.
-- $1 shard ids; $2 node name; $3 incarnation; $4 as in shard_acquire.sql. Returns each shard's new epoch.
WITH wanted AS MATERIALIZED (
    SELECT id
      FROM duetime.shard
     WHERE id = ANY($1::int[]) AND (status IN ('here', 'leaving') OR status = 'gone' AND id = ANY($4::int[]))
     ORDER BY id
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE duetime.shard AS s
   SET epoch = s.epoch + 1, owner = $2, incarnation = $3, acquired_at = clock_timestamp()
  FROM wanted
 WHERE s.id = wanted.id
RETURNING s.id, s.epoch
