-- One page of queues: at most $2 after the name $1, by name. Names are compared as bytes, so that every node and
-- every database agrees on their order.
SELECT name, policy, paused, created_at, updated_at
  FROM duetime.queue
 WHERE name COLLATE "C" > $1
 ORDER BY name COLLATE "C"
 LIMIT $2
