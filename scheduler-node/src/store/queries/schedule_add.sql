-- Adds a schedule.
-- Guard: no schedule has that name, and there is room; otherwise the statement changes nothing. The limit of the queue
-- is that of its policy as stored. A change of a queue (queue_put.sql) waits for the statements in flight, because they
-- lock the table of the fences in ROW SHARE mode; a statement that waited for a change reads its limit. Two concurrent
-- statements do not see each other's schedules and may both take the last place. The statement waits for less time than
-- the change of a queue does (duetime.await_claims) when another transaction adds or deletes a schedule of that name.
-- $1 name; $2 rules; $3 payload; $4 next fire time; $5 since; $6 paused at; $7 wake at; $8 the limit of schedules of
-- the caller's queues or NULL; $9 the caller's queues: names, or starts of names and `*`; NULL: all.
-- Returns one row: the limit of its queue; the number of schedules of its queue and of the caller's queues where a
-- limit applies; whether each limit is reached; and the schedule. Without a name: a limit is reached, or the name is
-- taken.
WITH gate AS MATERIALIZED (                                -- ROW SHARE lock on the table: see task_submit.sql
    SELECT s.id FROM duetime.shard AS s WHERE s.id = -1 FOR SHARE OF s
), policy AS MATERIALIZED (                                -- a limit that no node can read counts as none
    SELECT CASE WHEN (q.policy ->> 'max_schedules') ~ '^[0-9]{1,18}$' THEN (q.policy ->> 'max_schedules')::bigint END AS most
      FROM duetime.queue AS q
     WHERE q.name = $2::jsonb ->> 'queue' AND (SELECT count(*) FROM gate) = 0
), used AS MATERIALIZED (
    SELECT (SELECT p.most FROM policy AS p) AS most_of_queue,
           CASE WHEN (SELECT p.most FROM policy AS p) IS NOT NULL
                THEN (SELECT count(*) FROM duetime.schedule AS s WHERE s.rules ->> 'queue' = $2::jsonb ->> 'queue') END AS of_queue,
           CASE WHEN $8::bigint IS NOT NULL
                THEN (SELECT count(*) FROM duetime.schedule AS s
                       WHERE $9::text[] IS NULL
                          OR EXISTS (SELECT FROM unnest($9::text[]) AS p (pattern)
                                      WHERE CASE WHEN right(p.pattern, 1) = '*'
                                                 THEN starts_with(s.rules ->> 'queue', left(p.pattern, -1))
                                                 ELSE s.rules ->> 'queue' = p.pattern END)) END AS of_caller
), room AS MATERIALIZED (
    SELECT u.most_of_queue, u.of_queue, u.of_caller, coalesce(u.of_queue >= u.most_of_queue, false) AS queue_full,
           coalesce(u.of_caller >= $8::bigint, false) AS caller_full
      FROM used AS u
), added AS (
    INSERT INTO duetime.schedule (name, rules, payload, next_at, since, paused_at, wake_at)
    SELECT $1::text, $2::jsonb, $3::bytea, $4::timestamptz, $5::timestamptz, $6::timestamptz, $7::timestamptz FROM room AS r
     WHERE NOT r.queue_full AND NOT r.caller_full
       AND set_config('lock_timeout', '250ms', true) = '250ms'         -- from here on
        ON CONFLICT (name) DO NOTHING
    RETURNING name, revision, rules, payload, next_at, since, paused_at, buffered_at, last_fire_at, last_task, created_at, updated_at
)
SELECT r.most_of_queue, r.of_queue, r.of_caller, r.queue_full, r.caller_full, a.* FROM room AS r LEFT JOIN added AS a ON true
