-- Reads the actual owner of each shard.
SELECT id, epoch, owner, incarnation FROM duetime.shard ORDER BY id
