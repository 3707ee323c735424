-- Moves finished tasks to the archive in one statement, so that a task is always in exactly one of the two tables.
-- Guard: this attempt, claimed at least once since the task had its content and its budget, and in one of the states
-- that the event may end ($4, comma-separated). A task that is to stop does not die: its failure ends it as cancelled,
-- and the caller looks at the row again.
-- No state's name is part of another one's, so a search in the text of $4 is enough. An array would be made anew for
-- each row.
-- A deadline ($10) ends a task only if no sign of life has moved its `wake_at` meanwhile. At a deadline the statement
-- skips a row that another transaction locks, so an application's open transaction delays its own task and no other.
-- $1 ids; $2 attempts; $3 final states; $4 the states that the task may be in; $5 ms for which it is kept;
-- $6 results; $7 history entries; $8 status codes; $9 status messages; $10 whether a deadline ends it; $11 progress;
-- $12 workers (pairwise). Without a progress or a worker of its own, the end keeps that of the row.
-- Each of $6 to $9, $11 and $12 may be empty: NULL for each row. Each of $2 to $5, and $10, may have one value for all
-- rows.
-- It first runs without the clause for ends that exist. If there is one, it fails and changes nothing, and runs again
-- as it stands here (store/conflict.rs).
-- The history keeps the newest 100 entries, as in task_retry.
-- Returns the ids that moved, and the name and partition key of each task with a key that succeeded: others may wait
-- for it.
WITH fact AS MATERIALIZED (
    SELECT a.id, coalesce(a.attempt, ($2::int[])[1]) AS attempt, coalesce(a.final, ($3::text[])[1]) AS final,
           coalesce(a.was, ($4::text[])[1]) AS was, coalesce(a.keep_ms, ($5::bigint[])[1]) AS keep_ms,
           a.result, a.entry, a.status_code, a.status_msg, coalesce(a.at_deadline, ($10::boolean[])[1]) AS at_deadline,
           a.progress, a.worker
      FROM unnest($1::uuid[], $2::int[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::bigint[], $9::text[],
                  $10::boolean[], $11::smallint[], $12::text[])
        AS a (id, attempt, final, was, keep_ms, result, entry, status_code, status_msg, at_deadline, progress, worker)
), free AS MATERIALIZED (
    SELECT t.id FROM fact AS f JOIN duetime.task AS t ON t.id = f.id WHERE f.at_deadline FOR UPDATE OF t SKIP LOCKED
), gone AS (
    DELETE FROM duetime.task AS t
     USING fact AS f LEFT JOIN free AS n ON n.id = f.id
     WHERE t.id = f.id AND t.attempt = f.attempt AND strpos(f.was, t.state::text) > 0
       AND t.attempt > t.attempts_base AND (f.final <> 'dead' OR NOT t.stopping)
       AND (NOT f.at_deadline OR t.wake_at <= clock_timestamp()) AND (NOT f.at_deadline OR n.id IS NOT NULL)
    RETURNING t.*, f.final, f.keep_ms, f.result, f.entry, f.status_code, f.status_msg,
              coalesce(f.progress, t.progress) AS last_progress, coalesce(f.worker, t.worker) AS last_worker
)
INSERT INTO duetime.archive (
    id, shard, queue, state, wake_at, due_at, expires_at, priority, attempt, attempts_base, max_attempts, timeout_ms, retry,
    payload, content_type, headers, key, partition_key, version, claim_epoch, claimed_at, redeliveries, delivered_at,
    progress, worker, history, created_at, envelope, finished_at, result, status_code, status_msg, drop_on)
SELECT id, shard, queue, final::duetime.task_state, wake_at, due_at, expires_at, priority, attempt, attempts_base, max_attempts, timeout_ms, retry,
       payload, content_type, headers, key, partition_key, version, claim_epoch, claimed_at, redeliveries, coalesce(delivered_at, clock_timestamp()),
       last_progress, last_worker,
       CASE WHEN entry IS NULL THEN history ELSE jsonb_path_query_array(coalesce(history, '[]'), '$[last - 98 to last]') || entry::jsonb END,
       created_at, envelope, clock_timestamp(), result, status_code, status_msg,
       ((clock_timestamp() + keep_ms * interval '1 ms') AT TIME ZONE 'UTC')::date + 1
  FROM gone
    ON CONFLICT (drop_on, id) DO NOTHING                            -- an earlier end stays
RETURNING id, CASE WHEN state = 'succeeded' AND key IS NOT NULL THEN queue || ' ' || key END AS name,
          CASE WHEN state = 'succeeded' AND key IS NOT NULL THEN partition_key END AS partition_key
