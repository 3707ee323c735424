-- Archives rows that were cancelled in another database's inbox before a node collected them. Each row leaves a
-- cancelled task here, in the database of its shard.
-- Guard: as in task_collect.sql. The statement notes a row in duetime.received, and a second copy of the row writes
-- nothing.
-- $1..$16 the columns; $17 the source database; $18 when each was submitted; $19 when it was cancelled; $20 how long
-- it is kept, in ms (pairwise).
-- Returns the ids that this statement wrote.
WITH fresh AS MATERIALIZED (
    SELECT * FROM unnest(
        $1::uuid[], $2::int[], $3::text[], $4::timestamptz[], $5::smallint[], $6::bytea[], $7::text[], $8::text[],
        $9::text[], $10::int[], $11::bigint[], $12::text[], $13::timestamptz[], $14::text[], $15::bigint[], $16::boolean[],
        $18::timestamptz[], $19::timestamptz[], $20::bigint[]
    ) AS f (id, shard, queue, due_at, priority, payload, content_type, headers, partition_key, max_attempts, timeout_ms, retry, expires_at,
            key, version, now, submitted_at, cancelled_at, keep_ms)
), first AS (
    INSERT INTO duetime.received (id, source)
    SELECT f.id, $17::text FROM fresh AS f ORDER BY f.id
        ON CONFLICT (id) DO NOTHING
    RETURNING id
)
INSERT INTO duetime.archive (
    id, shard, queue, state, wake_at, due_at, priority, payload, content_type, headers,
    partition_key, max_attempts, timeout_ms, retry, expires_at, key, version, created_at, finished_at, drop_on)
SELECT f.id, f.shard, f.queue, 'cancelled', f.due_at, f.due_at, f.priority, f.payload, f.content_type, f.headers::jsonb,
       f.partition_key, f.max_attempts, f.timeout_ms, f.retry::jsonb, f.expires_at, f.key, f.version, f.submitted_at, f.cancelled_at,
       ((clock_timestamp() + f.keep_ms * interval '1 ms') AT TIME ZONE 'UTC')::date + 1
  FROM fresh AS f
 WHERE f.id = ANY(ARRAY(SELECT id FROM first))
RETURNING id
