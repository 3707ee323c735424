-- Makes tasks from rows of an inbox: of this database's own, or of another's, which deletes the rows afterwards.
-- Guard: a row makes one task, however often it is collected and whatever has become of the task. The statement
-- deletes a row of this database's own inbox, and writes nothing for a row that it did not delete. It notes a row of
-- another database's inbox in duetime.received, and writes nothing for a row that was noted before.
-- A row that is leaving, or that was cancelled while its shard was in another database, is noted like a row of another
-- inbox, even if its shard is here by now.
-- A row that is not refused is one without `refused_at`, which is set with `error` (a CHECK of the table). From `error`
-- the planner would prove the predicate of inbox_waiting. It then walks all rows that wait, instead of the ids, while
-- its statistics say that the inbox is empty.
-- $1..$16 the columns; $17 the source database (NULL: this one). Returns the ids that this statement wrote.
WITH fresh AS MATERIALIZED (
    SELECT * FROM unnest(
        $1::uuid[], $2::int[], $3::text[], $4::timestamptz[], $5::smallint[], $6::bytea[], $7::text[], $8::text[],
        $9::text[], $10::int[], $11::bigint[], $12::text[], $13::timestamptz[], $14::text[], $15::bigint[], $16::boolean[]
    ) AS f (id, shard, queue, due_at, priority, payload, content_type, headers,
            partition_key, max_attempts, timeout_ms, retry, expires_at, key, version, now)
), gone AS (
    DELETE FROM duetime.inbox AS i
     WHERE $17::text IS NULL
       AND i.id = ANY(ARRAY(
           SELECT w.id FROM duetime.inbox AS w WHERE w.id = ANY($1::uuid[]) AND w.refused_at IS NULL AND w.leaving_at IS NULL AND w.cancelled_at IS NULL ORDER BY w.id FOR UPDATE SKIP LOCKED))
    RETURNING i.id
), first AS (
    INSERT INTO duetime.received (id, source)
    SELECT f.id, $17 FROM fresh AS f WHERE $17 IS NOT NULL ORDER BY f.id
        ON CONFLICT (id) DO NOTHING
    RETURNING id
)
INSERT INTO duetime.task (
    id, shard, queue, state, wake_at, due_at, priority, payload, content_type, headers,
    partition_key, max_attempts, timeout_ms, retry, expires_at, key, version)
SELECT f.id, f.shard, f.queue, 'scheduled', f.due_at, f.due_at, f.priority, f.payload, f.content_type, f.headers::jsonb,
       f.partition_key, f.max_attempts, f.timeout_ms, f.retry::jsonb, f.expires_at, f.key, f.version
  FROM fresh AS f
 WHERE f.id = ANY(ARRAY(SELECT id FROM gone UNION ALL SELECT id FROM first))
RETURNING id
