-- Adds a schedule.
-- Guard: no schedule has that name, and there is room; otherwise the statement changes nothing. Two concurrent
-- statements do not see each other's schedules and may both take the last place.
-- $1 name; $2 rules; $3 payload; $4 next fire time; $5 since; $6 paused at; $7 wake at; $8 the limit of schedules of
-- its queue or NULL; $9 the limit of schedules of the caller's queues or NULL; $10 the caller's queues: names, or
-- starts of names and `*`; NULL: all.
-- Returns one row: the number of schedules of its queue and of the caller's queues where a limit applies, whether
-- each limit is reached, and the schedule. Without a name: a limit is reached, or the name is taken.
WITH used AS MATERIALIZED (
    SELECT CASE WHEN $8::bigint IS NOT NULL
                THEN (SELECT count(*) FROM duetime.schedule AS s WHERE s.rules ->> 'queue' = $2::jsonb ->> 'queue') END AS of_queue,
           CASE WHEN $9::bigint IS NOT NULL
                THEN (SELECT count(*) FROM duetime.schedule AS s
                       WHERE $10::text[] IS NULL
                          OR EXISTS (SELECT FROM unnest($10::text[]) AS p (pattern)
                                      WHERE CASE WHEN right(p.pattern, 1) = '*'
                                                 THEN starts_with(s.rules ->> 'queue', left(p.pattern, -1))
                                                 ELSE s.rules ->> 'queue' = p.pattern END)) END AS of_caller
), room AS MATERIALIZED (
    SELECT u.of_queue, u.of_caller, coalesce(u.of_queue >= $8::bigint, false) AS queue_full,
           coalesce(u.of_caller >= $9::bigint, false) AS caller_full
      FROM used AS u
), added AS (
    INSERT INTO duetime.schedule (name, rules, payload, next_at, since, paused_at, wake_at)
    SELECT $1::text, $2::jsonb, $3::bytea, $4::timestamptz, $5::timestamptz, $6::timestamptz, $7::timestamptz FROM room AS r WHERE NOT r.queue_full AND NOT r.caller_full
        ON CONFLICT (name) DO NOTHING
    RETURNING name, revision, rules, payload, next_at, since, paused_at, buffered_at, last_fire_at, last_task, created_at, updated_at
)
SELECT r.of_queue, r.of_caller, r.queue_full, r.caller_full, a.* FROM room AS r LEFT JOIN added AS a ON true
