-- Who owns each shard, in fact.
SELECT id, epoch, owner, incarnation, acquired_at FROM duetime.shard ORDER BY id
