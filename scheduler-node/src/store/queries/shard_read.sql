-- Reads the actual owner of each shard.
SELECT id, epoch, owner, incarnation, acquired_at FROM duetime.shard ORDER BY id
