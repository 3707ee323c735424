-- Makes tasks from rows of an inbox whose tasks have a key or wait for others. Each request says what to do when its
-- key exists already (duetime.task_put).
-- Guard: a row is put once. The statement locks, puts and deletes a row of this database's own inbox. It skips a row
-- that another transaction locks; a row that the function refuses or answers with `busy` stays. It notes a row of
-- another database's inbox with its answer, and a second copy of the row gets that answer. A row that was refused here
-- before it arrived (received_refuse.sql) gets none.
-- The last submission of a key is the last one applied. So a row stays, without an answer, behind an earlier row of $1
-- with its key that was not taken. Behind a row that is `busy`, later ones with its key are busy too
-- (duetime.task_put).
-- A shard that has moved to another database fails the statement (DT001).
-- It locks partitions and keys in their order, as task_put.sql does, so that two batches never wait for each other's
-- locks.
-- `refused_at` and not `error`: see task_collect.sql.
-- $1..$16 the columns; $17 what to do when the key exists; $18 how long a finished task holds its key; $19 how long a
-- superseded task is kept; $20 the dependencies (JSON array of names); $21 the source database (NULL: this one).
-- Returns each row's id and its outcome.
WITH taken AS MATERIALIZED (
    SELECT i.id FROM duetime.inbox AS i WHERE $21::text IS NULL AND i.id = ANY($1::uuid[]) AND i.refused_at IS NULL AND i.leaving_at IS NULL AND i.cancelled_at IS NULL FOR UPDATE SKIP LOCKED
), not_taken AS MATERIALIZED (                              -- locked by another transaction, or on its way elsewhere
    SELECT i.id FROM duetime.inbox AS i WHERE $21::text IS NULL AND i.id = ANY($1::uuid[]) AND i.refused_at IS NULL AND i.id <> ALL(ARRAY(SELECT id FROM taken))
), locked AS MATERIALIZED (
    SELECT duetime.lock_partitions($9::text[], $20::text[]) AS partitions
), placed AS MATERIALIZED (
    SELECT duetime.require_place($2::int[]) AS is_here
), fresh AS MATERIALIZED (
    SELECT f.*,
           CASE WHEN $21 IS NULL
                THEN f.id = ANY(ARRAY(SELECT id FROM taken))
                     AND NOT bool_or(f.id = ANY(ARRAY(SELECT id FROM not_taken)))
                             OVER (PARTITION BY f.queue, f.partition_key, coalesce(f.key, f.id::text) ORDER BY f.id)
                ELSE duetime.receive_begin(f.id, $21) END AS first
      FROM unnest(
           $1::uuid[], $2::int[], $3::text[], $4::timestamptz[], $5::smallint[], $6::bytea[], $7::text[], $8::text[],
           $9::text[], $10::int[], $11::bigint[], $12::text[], $13::timestamptz[], $14::text[], $15::bigint[], $16::boolean[],
           $17::text[], $18::bigint[], $19::bigint[], $20::text[])
        AS f (id, shard, queue, due_at, priority, payload, content_type, headers, partition_key, max_attempts, timeout_ms,
              retry, expires_at, key, version, now, on_duplicate, window_ms, keep_ms, depends_on)
     WHERE (SELECT is_here FROM placed) AND (SELECT partitions FROM locked) >= 0                           -- locks the partitions first
     ORDER BY f.queue, f.partition_key, f.key, f.id
), put AS MATERIALIZED (
    SELECT f.id AS asked_id, f.first,
           CASE WHEN f.first THEN (
               SELECT to_jsonb(p)
                 FROM duetime.task_put(
                      f.id, f.shard, f.queue, f.due_at, f.now, f.priority, f.payload, f.content_type, f.headers::jsonb, f.partition_key,
                      f.max_attempts, f.timeout_ms, f.retry::jsonb, f.expires_at, f.key, f.version, f.on_duplicate,
                      f.window_ms * interval '1 ms', f.keep_ms,
                      CASE WHEN f.depends_on IS NOT NULL THEN ARRAY(SELECT jsonb_array_elements_text(f.depends_on::jsonb)) END) AS p)
           END AS answer
      FROM fresh AS f
), gone AS (
    DELETE FROM duetime.inbox AS i
     WHERE $21 IS NULL AND i.id = ANY(ARRAY(SELECT asked_id FROM put WHERE answer ->> 'outcome' NOT IN ('refused', 'stale', 'cycle', 'deep', 'busy')))
), noted AS MATERIALIZED (
    SELECT asked_id, first,
           CASE WHEN $21 IS NULL THEN answer WHEN first THEN duetime.receive_end(asked_id, answer) ELSE duetime.receive_answer(asked_id) END
           AS answer
      FROM put
)
SELECT n.asked_id, n.first, a.outcome, a.id, a.state::text AS state, a.due_at, a.created_at, a.version, a.superseded
  FROM noted AS n
 CROSS JOIN LATERAL jsonb_to_record(n.answer)
    AS a (outcome text, id uuid, state text, due_at timestamptz, created_at timestamptz, version bigint, superseded bigint)
 WHERE n.answer ->> 'outcome' <> 'withheld'
