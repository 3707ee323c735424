-- Changes the due times of unclaimed tasks, each to its own, for requests that came at the same time: task_change.sql
-- limited to the due time, for tasks that are named by id or by key as in task_cancel_shared.sql.
-- Guard: as in task_change.sql, `waiting`, `scheduled` or `ready`, and the task must not expire before it is due. The
-- statement skips a row that another transaction locks, as bulk_cancel.sql does.
-- $1 ids; $2 queues, $3 partition keys and $4 keys of the requests without an id, as in task_cancel_shared.sql; $5
-- shards to leave out where a key is looked up; $6 the new due times, one for each request; one in the past means now.
-- Returns the changed rows as they are now, each with the place of its request from 1 on: of requests for one task, the
-- first.
WITH asked AS MATERIALIZED (
    SELECT DISTINCT ON (named.id) named.id, named.due_at, named.place
      FROM (SELECT coalesce(a.id, found.id) AS id, a.due_at, a.place
              FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $6::timestamptz[]) WITH ORDINALITY
                AS a (id, queue, partition_key, key, due_at, place)
              LEFT JOIN LATERAL (
                   SELECT t.id
                     FROM duetime.task AS t
                    WHERE t.queue = a.queue AND t.key = a.key AND coalesce(t.partition_key, '') = coalesce(a.partition_key, '')
                      AND t.shard <> ALL($5::int[])
                    ORDER BY t.version DESC
                    LIMIT 1) AS found ON true) AS named
     WHERE named.id IS NOT NULL
     ORDER BY named.id, named.place
), free AS MATERIALIZED (
    SELECT t.id, greatest(asked.due_at, now()) AS due_at, asked.place
      FROM asked
      JOIN duetime.task AS t ON t.id = asked.id
     WHERE t.state::text IN ('waiting', 'scheduled', 'ready')     -- cast: see task_claim
       FOR NO KEY UPDATE OF t SKIP LOCKED
)
UPDATE duetime.task AS t
   SET state = CASE WHEN t.state = 'ready' THEN 'scheduled' ELSE t.state END, due_at = free.due_at,
       wake_at = CASE WHEN t.state = 'waiting' THEN least(free.due_at, now() + (0.5 + random() / 2) * interval '6 hours') ELSE free.due_at END
  FROM free
 WHERE t.id = free.id
   AND t.state::text IN ('waiting', 'scheduled', 'ready')
   AND (t.expires_at > free.due_at) IS NOT FALSE                       -- NULL: the task does not expire
RETURNING t.id, t.queue, t.state::text AS state, t.wake_at, t.due_at, t.expires_at, t.priority, t.attempt,
          t.max_attempts, t.payload, t.content_type, t.headers, t.key, t.version, t.partition_key, t.delivered_at, t.progress, t.worker,
          t.history, t.created_at, NULL::timestamptz AS finished_at, NULL::text AS result, NULL::bigint AS status_code, NULL::text AS status_msg,
          t.stopping, free.place
