-- Ends a move that was called off, in the target, after its rows were deleted. The fence stays, also where it never had
-- an owner: its numbers tell what is older than this move.
-- Guard: the shard still arrives, the caller filled it, and no later write of the caller came before: the next move of
-- the shard may be filling it by now, under the same epoch.
-- $1 shard; $2 the epoch under which the caller filled the shard; $3 the number of this write.
UPDATE duetime.shard SET status = 'gone', move_write = $3
 WHERE id = $1 AND status = 'arriving' AND move_epoch = $2 AND move_write < $3
