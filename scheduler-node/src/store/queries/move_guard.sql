-- Has the gate guard shards in one table. Guard: waits for every writer, but gives up soon (duetime.gate_guard).
-- $1 table; $2 shards; $3 whether to drop the shards that are not moving. Returns whether the gate was made anew.
SELECT duetime.gate_guard($1, $2, $3) AS made
