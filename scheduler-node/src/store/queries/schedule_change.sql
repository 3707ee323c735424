-- Sets a schedule's rules, payload and standing.
-- Guard: the schedule still has the revision $8, and the queue has room if the schedule comes from another one. After
-- a decision (schedule_turn.sql) or another change the statement does nothing. The limit of the queue is read as in
-- schedule_add.sql: a change of a queue waits for this statement, or it for the change. So the statement waits for no
-- row: a schedule that another transaction holds is left alone (`held`), and schedule_await.sql waits for it.
-- $1 name; $2 rules; $3 payload; $4 next fire time; $5 since; $6 paused at; $7 wake at; $8 the revision that the
-- caller read.
-- Returns one row: the limit of its queue; the number of schedules of its queue where the limit applies; whether the
-- limit is reached; whether the schedule is held; and the schedule. Without a name: the limit is reached, or the
-- schedule is held or has another revision.
WITH gate AS MATERIALIZED (                                -- ROW SHARE lock on the table: see task_submit.sql
    SELECT s.id FROM duetime.shard AS s WHERE s.id = -1 FOR SHARE OF s
), policy AS MATERIALIZED (
    SELECT CASE WHEN (q.policy ->> 'max_schedules') ~ '^[0-9]{1,18}$' THEN (q.policy ->> 'max_schedules')::bigint END AS most
      FROM duetime.queue AS q
     WHERE q.name = $2::jsonb ->> 'queue' AND (SELECT count(*) FROM gate) = 0
), used AS MATERIALIZED (
    SELECT (SELECT p.most FROM policy AS p) AS most_of_queue,
           CASE WHEN (SELECT p.most FROM policy AS p) IS NOT NULL
                 AND NOT EXISTS (SELECT FROM duetime.schedule AS s WHERE s.name = $1 AND s.rules ->> 'queue' = $2::jsonb ->> 'queue')
                THEN (SELECT count(*) FROM duetime.schedule AS s WHERE s.rules ->> 'queue' = $2::jsonb ->> 'queue') END AS of_queue
), free AS MATERIALIZED (
    SELECT s.name
      FROM used AS u CROSS JOIN duetime.schedule AS s
     WHERE s.name = $1 AND s.revision = $8 AND NOT coalesce(u.of_queue >= u.most_of_queue, false)
       FOR NO KEY UPDATE OF s SKIP LOCKED
), changed AS (
    UPDATE duetime.schedule AS s
       SET revision = nextval('duetime.schedule_revision'), rules = $2::jsonb, payload = $3, next_at = $4, since = $5, paused_at = $6,
           wake_at = $7, updated_at = clock_timestamp()
      FROM free AS f
     WHERE s.name = f.name AND s.revision = $8
    RETURNING s.name, s.revision, s.rules, s.payload, s.next_at, s.since, s.paused_at, s.buffered_at, s.last_fire_at, s.last_task,
              s.created_at, s.updated_at
)
SELECT u.most_of_queue, u.of_queue, NULL::bigint AS of_caller, coalesce(u.of_queue >= u.most_of_queue, false) AS queue_full,
       false AS caller_full,
       CASE WHEN coalesce(u.of_queue >= u.most_of_queue, false) OR EXISTS (SELECT FROM free) THEN false
            ELSE EXISTS (SELECT FROM duetime.schedule AS s WHERE s.name = $1 AND s.revision = $8) END AS held, c.*
  FROM used AS u LEFT JOIN changed AS c ON true
