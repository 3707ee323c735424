-- Reads schedules whose `wake_at` has passed, the longest overdue first, with the time and the next `wake_at`; one
-- row without a name: there is none. `pending`: the last task is decided and not known to be written.
-- The statement skips a schedule that another transaction locks: schedule_turn.sql would wait for it, and the other
-- schedules with it. An application's open transaction delays its own schedule and no other. The lock is shared, so
-- two nodes that read at the same moment skip nothing.
-- It passes over a schedule whose decision depends on a last task that this node cannot learn of. Another node may be
-- able to, so it takes no place here. If none has decided it after some seconds, schedule_overdue.sql postpones it.
-- $1 how long the statement leaves a due schedule to other nodes; $2 the limit of schedules; $3 the revisions of
-- schedules that this node leaves alone; $4 the `wake_at` before which schedules are not looked at; $5 the shards whose
-- tasks this node cannot learn of.
SELECT clock_timestamp() AS now, next.wake_at AS next_wake_at, due.*
  FROM (SELECT (SELECT wake_at
                  FROM duetime.schedule
                 WHERE wake_at > statement_timestamp() - $1
                 ORDER BY wake_at
                 LIMIT 1) AS wake_at) AS next
  LEFT JOIN (SELECT s.name, s.revision, s.wake_at, s.rules, s.payload, s.next_at, s.since, s.paused_at, s.buffered_at, s.last_fire_at,
                    s.last_task, s.created_at, s.updated_at, EXISTS (SELECT FROM duetime.fire AS f WHERE f.id = s.last_task) AS pending
               FROM duetime.schedule AS s
              WHERE s.wake_at >= $4 AND s.wake_at <= statement_timestamp() - $1
                AND s.revision <> ALL ($3::bigint[])
                AND (s.last_task IS NULL OR duetime.shard_in(s.last_task) <> ALL ($5::int[]) OR s.rules ->> 'overlap' = 'allow'
                     OR (SELECT true FROM duetime.fire AS f WHERE f.id = s.last_task))
              ORDER BY s.wake_at
              LIMIT $2
                FOR SHARE OF s SKIP LOCKED) AS due ON true
