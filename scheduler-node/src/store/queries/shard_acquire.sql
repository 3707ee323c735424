-- Acquires the fences of the shards that this node was assigned, with a new epoch for each. Beside the acquire
-- statements, those of a cut mint epochs: move_close, move_open and move_reopen.
-- Guard: the shard is in this database, or goes through the last part of a move away from it and its owner has to
-- finish that ($4). The lease decides which node should own a shard, and this row decides which one does. The statement
-- waits for claims in flight, because they hold the row FOR SHARE. Once it returns, no claim of an older epoch can
-- commit. It locks the rows in the order of their ids.
-- $1 shard ids; $2 node name; $3 incarnation; $4 the closed shards whose place is this database.
-- Returns each shard's new epoch.
WITH wanted AS MATERIALIZED (
    SELECT id
      FROM duetime.shard
     WHERE id = ANY($1::int[]) AND (status IN ('here', 'leaving') OR status = 'gone' AND id = ANY($4::int[]))
     ORDER BY id
       FOR NO KEY UPDATE
)
UPDATE duetime.shard AS s
   SET epoch = s.epoch + 1, owner = $2, incarnation = $3, acquired_at = clock_timestamp()
  FROM wanted
 WHERE s.id = wanted.id
RETURNING s.id, s.epoch
