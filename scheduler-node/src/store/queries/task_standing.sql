-- Reads the standing of tasks, from which the node decides what a deadline, a rejection or a report means for each.
-- A shard that has moved to another database fails the statement (DT001): what is left here tells nothing of a task.
-- $1 ids. Tasks that have finished do not come back. `expired`: no claim takes the task any more, and the sweep will.
-- `turned`: the revision at which the queue's policy last changed; 0: never. `predates_reports`: the queue's `settle`
-- became `result` after the confirm of the attempt.
SELECT t.id, t.queue, t.state::text AS state, t.attempt, t.attempts_base, t.max_attempts, t.timeout_ms, t.retry, t.claimed_at, t.wake_at,
       coalesce(t.state IN ('waiting', 'scheduled', 'ready') AND t.expires_at <= clock_timestamp(), false) AS expired,
       t.stopping, t.headers ->> 'traceparent' AS traceparent, clock_timestamp() AS now,
       coalesce((SELECT q.revision FROM duetime.queue_turn AS q WHERE q.queue = t.queue), 0) AS turned,
       coalesce((SELECT t.delivered_at < q.reports_since FROM duetime.queue_turn AS q WHERE q.queue = t.queue), false) AS predates_reports
  FROM duetime.task AS t
 WHERE t.id = ANY($1::uuid[])
   AND (SELECT duetime.require_place(ARRAY(SELECT DISTINCT duetime.shard_in(asked.id) FROM unnest($1::uuid[]) AS asked (id))))
