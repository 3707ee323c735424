-- Reads the fence of one shard, as a move sees it. $1 shard. No row: this database knows nothing of the shard.
SELECT status::text AS status, epoch, owner, incarnation, move_epoch, move_write FROM duetime.shard WHERE id = $1
