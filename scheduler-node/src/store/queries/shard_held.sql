-- Finds which of the presented epochs are still in force. A node runs it after a claim found fewer fences than it
-- presented, and before it puts owner keys back that it has lost.
-- $1 shard ids; $2 epochs (pairwise). Returns the ids of the shards that the node still holds.
SELECT s.id
  FROM duetime.shard AS s
  JOIN unnest($1::int[], $2::bigint[]) AS mine (id, epoch) ON s.id = mine.id AND s.epoch = mine.epoch
