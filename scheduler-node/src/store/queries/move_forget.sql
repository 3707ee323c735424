-- Deletes exactly these changes of a shard. $1 shard; $2 their numbers.
DELETE FROM duetime.move_change WHERE shard = $1 AND number = ANY($2::bigint[])
