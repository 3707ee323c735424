-- Ends a move: its row becomes one of those that have ended. A move that has ended already stays as it is.
-- Guard: exactly this move. A later one of the same shard goes on.
-- $1 shard; $2 the outcome; $3 the kept number of ended moves; $4 when the move was requested.
WITH gone AS (
    DELETE FROM duetime.move WHERE shard = $1 AND requested_at = $4 RETURNING *
), forgotten AS (
    DELETE FROM duetime.move_ended WHERE id <= (SELECT max(id) FROM duetime.move_ended) - $3
)
INSERT INTO duetime.move_ended (shard, source, target, outcome, requested_by, requested_at, started_at, cut_ms, rows_copied, bytes_copied)
SELECT shard, source, target, $2, requested_by, requested_at, started_at,
       (extract(epoch FROM cut_ended_at - cut_began_at) * 1000)::bigint, rows_copied, bytes_copied
  FROM gone
