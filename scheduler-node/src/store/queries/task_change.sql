-- Changes an unclaimed task.
-- Guard: `waiting`, `scheduled` or `ready`, so that a change and a claim meet on the row and one of them finds
-- nothing. Its expiry has not passed: no claim takes an expired task. When its due time or its expiry changes, the task
-- must not expire before it is due.
-- A new due time moves `wake_at` with it, and takes a `ready` row back into the index task_wake. A task that waits for
-- others wakes three to six hours from now at the latest (task_release.sql).
-- Content that differs (payload, content type, headers) begins a new budget of attempts, so that a late success with
-- the former content does not end the task.
-- $1 id; $2 due time (in the past means now), $3 payload, $4 content type, $5 priority, $6 headers (each
-- NULL: unchanged); $7 whether the expiry changes; $8 the new expiry.
-- Returns the row as it is now; no row: the guard did not hold.
UPDATE duetime.task AS t
   SET state = CASE WHEN $2::timestamptz IS NOT NULL AND t.state = 'ready' THEN 'scheduled' ELSE t.state END,
       due_at = CASE WHEN $2::timestamptz IS NULL THEN t.due_at ELSE greatest($2, now()) END,
       wake_at = CASE WHEN $2::timestamptz IS NULL THEN t.wake_at
                      WHEN t.state = 'waiting' THEN least(greatest($2, now()), now() + (0.5 + random() / 2) * interval '6 hours')
                      ELSE greatest($2, now()) END,
       payload = coalesce($3, t.payload),
       content_type = coalesce($4, t.content_type),
       priority = coalesce($5, t.priority),
       headers = coalesce($6::jsonb, t.headers),
       attempts_base = CASE WHEN coalesce($3, t.payload) IS NOT DISTINCT FROM t.payload
                             AND coalesce($4, t.content_type) IS NOT DISTINCT FROM t.content_type
                             AND coalesce($6::jsonb, t.headers) IS NOT DISTINCT FROM t.headers
                            THEN t.attempts_base ELSE t.attempt END,
       expires_at = CASE WHEN $7 THEN $8::timestamptz ELSE t.expires_at END
 WHERE t.id = $1
   AND t.state IN ('waiting', 'scheduled', 'ready')
   AND (t.expires_at > clock_timestamp()) IS NOT FALSE
   AND (   ($2::timestamptz IS NULL AND NOT $7)
        OR (CASE WHEN $7 THEN $8::timestamptz ELSE t.expires_at END > CASE WHEN $2::timestamptz IS NULL THEN t.due_at ELSE greatest($2, now()) END)
           IS NOT FALSE)                                            -- NULL: the task does not expire
RETURNING t.id, t.queue, t.state::text AS state, t.wake_at, t.due_at, t.expires_at, t.priority, t.attempt,
          t.max_attempts, t.payload, t.content_type, t.headers, t.key, t.version, t.partition_key, t.delivered_at, t.progress, t.worker,
          t.history, t.created_at, NULL::timestamptz AS finished_at, NULL::text AS result, NULL::bigint AS status_code, NULL::text AS status_msg,
          t.stopping
