-- Reads what a node follows in this database, in one snapshot: numbers that rise with every change of the queues, the
-- tokens and the map of the shards, and whether there is anything to do. It reads a row or an end of an index each.
-- `has_moves`: a move of a shard has not ended. `inbox_oldest`: the moment of the first submission in SQL that waits.
-- `schedule_wake_at` and `fire_wake_at`: when a schedule, or a decided fire time without its task, must be looked at
-- first. NULL: never, or none.
-- $1 the moment of a submission before which the inbox is not looked at; $2 and $3 the same for the `wake_at` of
-- schedules and of fire times.
-- The clock is read last, so that little time lies between its reading and the answer.
SELECT m.queue_revision, m.token_revision, s.revision AS map_revision,
       EXISTS (SELECT FROM duetime.move) AS has_moves,
       (SELECT i.submitted_at FROM duetime.inbox AS i
         WHERE i.error IS NULL AND i.submitted_at >= $1 ORDER BY i.submitted_at LIMIT 1) AS inbox_oldest,
       (SELECT min(wake_at) FROM duetime.schedule WHERE wake_at >= $2) AS schedule_wake_at,
       (SELECT min(wake_at) FROM duetime.fire WHERE wake_at >= $3) AS fire_wake_at,
       clock_timestamp() AS now
  FROM duetime.meta AS m CROSS JOIN duetime.shard_map AS s
