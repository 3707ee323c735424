-- Ends a move that was called off, in the target, after its rows were deleted. A fence that never had an owner here
-- goes.
-- Guard: the shard still arrives, and the caller filled it. $1 shard; $2 the epoch under which the caller filled the
-- shard.
WITH kept AS (
    UPDATE duetime.shard SET status = 'gone' WHERE id = $1 AND status = 'arriving' AND move_epoch = $2 AND epoch > 0
)
DELETE FROM duetime.shard WHERE id = $1 AND status = 'arriving' AND move_epoch = $2 AND epoch = 0
