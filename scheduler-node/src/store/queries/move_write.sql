-- Writes rows into an arriving shard. Guard: the shard still arrives, under the caller's epoch, and no later write of
-- the caller came before (duetime.move_write).
-- $1 shard; $2 the caller's epoch in the source; $3 the number of the write; $4 ids and $5 rows of task; $6 days, $7
-- ids and $8 rows of archive; $9 ids and $10 rows of received. Returns whether the guard held.
SELECT duetime.move_write($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) AS done
