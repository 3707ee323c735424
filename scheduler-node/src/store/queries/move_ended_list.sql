-- Lists at most $1 of the moves that have ended, the newest first.
SELECT shard, source, target, outcome, requested_by, requested_at, started_at, cut_ms, rows_copied, bytes_copied, ended_at
  FROM duetime.move_ended
 ORDER BY id DESC
 LIMIT $1
