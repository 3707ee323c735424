-- Cancels unclaimed tasks for requests that came at the same time: bulk_cancel.sql, for tasks that are named by id or
-- by key. A key names its newest live task, as in task_find_live.sql.
-- Guard: as in task_cancel.sql, `waiting`, `scheduled` or `ready`. The statement skips a row that another transaction
-- locks, as bulk_cancel.sql does. A row found by its key is checked again when it is locked. That is enough although
-- its key is looked up before: a row keeps its queue and keys, and a newer version comes together with the end of an
-- unclaimed older one (task_put.sql).
-- $1 ids; $2 queues, $3 partition keys and $4 keys of the requests without an id (pairwise, each NULL where it does not
-- apply; an array without a value may be empty); $5 shards to leave out where a key is looked up, because their place
-- is another database; $6 ms for which a cancelled task is kept, except in the queues $7, which keep it for $8 ms ($7
-- and $8 pairwise). See task_expire.sql for the map.
-- It first runs without the clause for ends that exist. If there is one, it fails and changes nothing, and runs again
-- as it stands here (store/conflict.rs).
-- Returns the cancelled tasks, each with the place of its request from 1 on: of requests for one task, the first.
WITH asked AS MATERIALIZED (
    SELECT DISTINCT ON (named.id) named.id, named.place
      FROM (SELECT coalesce(a.id, found.id) AS id, a.place
              FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS a (id, queue, partition_key, key, place)
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
    SELECT t.id, asked.place
      FROM asked
      JOIN duetime.task AS t ON t.id = asked.id
     WHERE t.state::text IN ('waiting', 'scheduled', 'ready')     -- cast: see task_claim
       FOR UPDATE OF t SKIP LOCKED
), gone AS (
    DELETE FROM duetime.task AS t
     USING free
     WHERE t.id = free.id AND t.state::text IN ('waiting', 'scheduled', 'ready')
    RETURNING t.*, free.place
), kept AS (
INSERT INTO duetime.archive (
    id, shard, queue, state, wake_at, due_at, expires_at, priority, attempt, attempts_base, max_attempts, timeout_ms, retry,
    payload, content_type, headers, key, partition_key, version, claim_epoch, claimed_at, redeliveries, delivered_at,
    progress, worker, history, created_at, envelope, finished_at, drop_on)
SELECT id, shard, queue, 'cancelled', wake_at, due_at, expires_at, priority, attempt, attempts_base, max_attempts, timeout_ms, retry,
       payload, content_type, headers, key, partition_key, version, claim_epoch, claimed_at, redeliveries, delivered_at,
       progress, worker, history, created_at, envelope, clock_timestamp(),
       ((clock_timestamp() + coalesce(
           ((SELECT jsonb_object($7::text[], $8::bigint[]::text[])) ->> gone.queue)::bigint, $6    -- built once
        ) * interval '1 ms') AT TIME ZONE 'UTC')::date + 1
  FROM gone
    ON CONFLICT (drop_on, id) DO NOTHING                            -- an earlier end stays
)
SELECT id, queue, attempt, place FROM gone
