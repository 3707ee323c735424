-- Reads the numbers of changes of a shard, oldest first, without the rows that they are about, and whether the fence is
-- still the caller's. One snapshot shows both, so under that fence none of the changes is of a later owner's move.
-- $1 shard; $2 the number after which to read; $3 the most changes; $4 epoch and $5 status of the caller's fence.
-- Returns one row: the numbers, whether there were no more, and whether the fence is the caller's.
WITH page AS MATERIALIZED (
    SELECT c.number FROM duetime.move_change AS c WHERE c.shard = $1 AND c.number > $2 ORDER BY c.number LIMIT $3
)
SELECT ARRAY(SELECT p.number FROM page AS p ORDER BY p.number) AS numbers,
       (SELECT count(*) FROM page) < $3 AS are_all,
       EXISTS (SELECT FROM duetime.shard AS s WHERE s.id = $1 AND s.epoch = $4 AND s.status::text = $5) AS has_fence
