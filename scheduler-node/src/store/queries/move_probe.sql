-- Asks a database whether it could receive shards. It locks a row, which a read-only server refuses (25006), in a mode
-- that no other statement waits for.
SELECT FROM duetime.gate WHERE guarded = 'task' FOR KEY SHARE
