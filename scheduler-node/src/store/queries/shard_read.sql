-- Reads the actual owner of each shard that is in this database. The fence of a shard that has moved away, or that
-- arrives, decides nothing here, and its epoch may be that of the fence in the shard's place.
SELECT id, epoch, owner, incarnation FROM duetime.shard WHERE status IN ('here', 'leaving') ORDER BY id
