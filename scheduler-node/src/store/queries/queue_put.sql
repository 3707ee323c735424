-- Sets a queue's policy and, unless $3 is NULL, whether it is paused. The revision rises with it.
-- Guard: waits for the claims in flight (duetime.await_claims); later claims see that the queue has turned, which
-- means that its policy has changed (see task_claim.sql). The statement runs in the queues' home database;
-- queue_turn.sql notes the turn in every other one. With $5 the queue is also as the caller saw it, so that of two
-- callers who saw the same, one changes it.
-- $1 name; $2 policy; $3 paused; $4 the limit of queues in all; $5 whether the queue must be as the caller saw it: last
-- changed at $6, or absent if $6 is NULL; $7 the policy of a queue that does not exist.
-- Returns the queue as it is now and the revision; `created`: the queue did not exist before; `placed`: the revision
-- at which its rules for submissions last changed (placement, format, deduplication window, limits of submissions);
-- `reports_since`: when its `settle` last became `result`, NULL: never. No row: the queue does not exist, and there is
-- no room for another; or it is not as the caller saw it.
WITH waited AS MATERIALIZED (
    SELECT duetime.await_claims() AS done
), before AS MATERIALIZED (
    SELECT coalesce(duetime.queue_policy($1), $7::jsonb) AS policy FROM waited WHERE waited.done
), seen AS MATERIALIZED (
    -- A row that another statement has changed or deleted meanwhile is read anew, because it is locked.
    SELECT q.name FROM waited AS w CROSS JOIN duetime.queue AS q WHERE w.done AND q.name = $1 AND q.updated_at = $6::timestamptz FOR UPDATE OF q
), put AS (
    INSERT INTO duetime.queue AS q (name, policy, paused)
    SELECT $1::text, $2::jsonb, coalesce($3, false)
      FROM before
     WHERE before.policy IS NOT NULL AND (EXISTS (SELECT FROM duetime.queue WHERE name = $1) OR (SELECT count(*) FROM duetime.queue) < $4::int8)
       AND (NOT $5::boolean OR $6::timestamptz IS NULL OR EXISTS (SELECT FROM seen))
        ON CONFLICT (name) DO UPDATE
       SET policy = excluded.policy, paused = coalesce($3, q.paused), updated_at = clock_timestamp()
     WHERE NOT $5::boolean OR $6::timestamptz IS NOT NULL
    RETURNING name, policy, paused, created_at, updated_at, q.xmax = 0 AS created     -- only an update sets xmax
), noticed AS (
    UPDATE duetime.meta SET queue_revision = queue_revision + 1 WHERE EXISTS (SELECT FROM put) RETURNING queue_revision AS revision
), turned AS (
    INSERT INTO duetime.queue_turn AS q (queue, revision, placed, reports_since)
    SELECT $1, n.revision,
           -- NULLs in an array are equal: a limit that is absent before and after has not changed.
           CASE WHEN ARRAY[b.policy -> 'placement', b.policy -> 'format', b.policy -> 'dedup_window_ms',
                           b.policy -> 'max_pending', b.policy -> 'max_pending_bytes', b.policy -> 'max_submits_per_second']
                     = ARRAY[$2::jsonb -> 'placement', $2::jsonb -> 'format', $2::jsonb -> 'dedup_window_ms',
                             $2::jsonb -> 'max_pending', $2::jsonb -> 'max_pending_bytes', $2::jsonb -> 'max_submits_per_second']
                THEN 0 ELSE n.revision END,
           CASE WHEN b.policy ->> 'settle' IS DISTINCT FROM 'result' AND $2::jsonb ->> 'settle' = 'result' THEN clock_timestamp() END
      FROM noticed AS n CROSS JOIN before AS b
        ON CONFLICT (queue) DO UPDATE
       SET revision = excluded.revision, placed = greatest(q.placed, excluded.placed),
           reports_since = greatest(q.reports_since, excluded.reports_since)
    RETURNING placed, reports_since
)
SELECT p.name, p.policy, p.paused, p.created_at, p.updated_at, p.created, n.revision, t.placed, t.reports_since
  FROM put AS p CROSS JOIN noticed AS n CROSS JOIN turned AS t
