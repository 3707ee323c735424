-- Reads the actual owner of each shard of which this database has a fence.
SELECT id, epoch, owner, incarnation FROM duetime.shard ORDER BY id
