-- Reads unfinished tasks with everything that an export needs. $1 ids. A task that has finished meanwhile does not
-- come back; the archive has it then.
SELECT t.id, t.queue, t.state::text AS state, t.wake_at, t.due_at, t.expires_at, t.priority, t.attempt,
       t.max_attempts, t.payload, t.content_type, t.headers, t.key, t.version, t.partition_key, t.delivered_at, t.progress, t.worker, t.history,
       t.created_at, NULL::timestamptz AS finished_at, NULL::text AS result, NULL::bigint AS status_code, NULL::text AS status_msg,
       t.stopping, t.timeout_ms, t.retry, t.envelope,
       CASE WHEN t.state = 'waiting' THEN ARRAY(
           SELECT name FROM unnest(t.depends_on) AS name
            WHERE duetime.standing_of(name, t.partition_key) IS DISTINCT FROM 'succeeded') END AS depends_on
  FROM unnest($1::uuid[]) AS asked (id)
  JOIN duetime.task AS t ON t.id = asked.id
 ORDER BY t.due_at, t.id
