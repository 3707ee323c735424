-- Calls off the moves of the shards $1 that are before their cut. A second call changes nothing.
-- Returns each shard of $1 that moves: `done`, whether its move is called off.
-- Guard: a cut that begins at the same time locks the row first, or finds the mark.
WITH called AS (
    UPDATE duetime.move SET called_off_at = coalesce(called_off_at, clock_timestamp())
     WHERE shard = ANY($1::int[]) AND step IN ('planned', 'copying')
    RETURNING shard
)
SELECT m.shard, EXISTS (SELECT FROM called AS c WHERE c.shard = m.shard) AS done
  FROM duetime.move AS m
 WHERE m.shard = ANY($1::int[])
 ORDER BY m.shard
