-- Writes a batch of new tasks: one row each, committed together, with one answer for each.
-- A task that is due at once may be claimed by its own insert. Where $18 presents an epoch and the fence of the shard
-- is held under it (locked FOR SHARE, as in task_claim.sql), the row begins as `dispatching`, attempt 1. Otherwise it
-- begins as `scheduled`, also when its queue has turned since revision $21 (see task_claim.sql).
-- Guard: an id that exists already is left alone, so that a batch whose commit is unknown can be sent again. When it
-- is ($17 = true), ids that have meanwhile finished are left alone too. A row of such a batch may be a second copy,
-- and its `redeliveries` says so.
-- A first sending runs without the clause for ids that exist. If there is one, it fails and changes nothing, and runs
-- again as it stands here (store/conflict.rs).
-- A sending that is held up must not insert anew a task that another sending has written and a consumer has finished.
-- So each sending has a time window. It inserts nothing after $23, which the statement checks row by row after the
-- insert. The next sending does nothing before that time has passed ($22). Outside of its window the statement fails
-- and changes nothing. A repeated sending also checks afresh, after each insert, whether the task has finished.
-- The statement writes no task of a queue whose rules for submissions have changed since revision $24, by which the
-- tasks were admitted and got their shards (see queue_put.sql). A change of a queue waits for inserts in flight,
-- because they lock the table of the fences in ROW SHARE mode.
-- "Now" is the statement's time, one for all its columns: a task due at once has one time at which it is due and
-- wakes.
-- $1..$16 and $20 the columns; $17 whether the batch is sent again; $18 epochs presented (pairwise); $19 the
-- look-again time; $21 the revision of the queues that the claiming node knows; $22 and $23 the time window; $24 the
-- revision of the routes. An array of an optional column, or of epochs, may be empty: NULL for each row. Each of $3,
-- $4, $5, $7, $15 and $16 may have one value for all rows: `unnest` fills it up with NULL, which none of them contains.
-- Returns "now", the time, the fences held, the queues that have turned, and those whose rules have changed.
WITH fresh AS (                                                       -- MATERIALIZED would copy the payloads
    SELECT a.id, a.shard, coalesce(a.queue, ($3::text[])[1]) AS queue, coalesce(a.due_at, ($4::timestamptz[])[1]) AS due_at,
           coalesce(a.priority, ($5::smallint[])[1]) AS priority, a.payload, coalesce(a.content_type, ($7::text[])[1]) AS content_type,
           a.headers, a.partition_key, a.max_attempts, a.timeout_ms, a.retry, a.expires_at, a.key,
           coalesce(a.version, ($15::bigint[])[1]) AS version, coalesce(a.now, ($16::boolean[])[1]) AS now, a.epoch, a.envelope
      FROM unnest(
           $1::uuid[], $2::int[], $3::text[], $4::timestamptz[], $5::smallint[], $6::bytea[], $7::text[], $8::text[],
           $9::text[], $10::int[], $11::bigint[], $12::text[], $13::timestamptz[], $14::text[], $15::bigint[], $16::boolean[],
           $18::bigint[], $20::text[])
        AS a (id, shard, queue, due_at, priority, payload, content_type, headers,
              partition_key, max_attempts, timeout_ms, retry, expires_at, key, version, now, epoch, envelope)
), turned AS MATERIALIZED (
    SELECT q.queue FROM duetime.queue_turn AS q WHERE q.revision > $21
), rules_changed AS MATERIALIZED (
    SELECT q.queue FROM duetime.queue_turn AS q WHERE q.revision > $24 AND q.placed > $24
), fence AS MATERIALIZED (
    SELECT s.id
      FROM duetime.shard AS s
      JOIN (SELECT DISTINCT p.shard, p.epoch
              FROM unnest($2::int[], $18::bigint[]) AS p (shard, epoch)
             WHERE p.epoch IS NOT NULL) AS mine ON s.id = mine.shard AND s.epoch = mine.epoch
     ORDER BY s.id
       FOR SHARE OF s
), finished AS MATERIALIZED (                                         -- a function: the archive is opened only if $17
    SELECT a.id FROM duetime.finished_among($1::uuid[]) AS a (id) WHERE $17
), gated AS (
    SELECT f.*, f.epoch IS NOT NULL AND f.shard IN (SELECT id FROM fence)         -- a hash table
                AND f.queue <> ALL(ARRAY(SELECT queue FROM turned)) AS claimed
      FROM fresh AS f
    OFFSET 0                                                        -- so `claimed` is worked out once a row
), written AS (
    INSERT INTO duetime.task AS t (
        id, shard, queue, state, wake_at, due_at, priority, payload, content_type, headers,
        partition_key, max_attempts, timeout_ms, retry, expires_at, key, version, redeliveries,
        attempt, claim_epoch, claimed_at, envelope)
    SELECT f.id, f.shard, f.queue, CASE WHEN f.claimed THEN 'dispatching'::duetime.task_state ELSE 'scheduled' END,
           CASE WHEN f.claimed THEN statement_timestamp() + $19 WHEN f.now THEN statement_timestamp() ELSE f.due_at END,
           CASE WHEN f.now THEN statement_timestamp() ELSE f.due_at END,
           f.priority, f.payload, f.content_type, f.headers::jsonb,
           f.partition_key, f.max_attempts, f.timeout_ms, f.retry::jsonb, f.expires_at, f.key, f.version,
           CASE WHEN $17 THEN 1 ELSE 0 END,
           CASE WHEN f.claimed THEN 1 ELSE 0 END,
           CASE WHEN f.claimed THEN f.epoch END,
           CASE WHEN f.claimed THEN statement_timestamp() END,
           f.envelope::jsonb
      FROM gated AS f
     WHERE f.queue <> ALL(ARRAY(SELECT queue FROM rules_changed))
       AND f.id <> ALL(ARRAY(SELECT id FROM finished))
        ON CONFLICT (id) DO NOTHING
    RETURNING CASE WHEN clock_timestamp() > $23 THEN duetime.out_of_time() WHEN $17 THEN duetime.not_finished(t.id) ELSE true END AS in_time
)
SELECT statement_timestamp() AS asked_at, clock_timestamp() AS now, ARRAY(SELECT id FROM fence) AS held,
       ARRAY(SELECT queue FROM turned) AS turned, ARRAY(SELECT queue FROM rules_changed) AS rules_changed,
       CASE WHEN statement_timestamp() <= $22 THEN duetime.out_of_time() END AS too_early,
       (SELECT bool_and(w.in_time) FROM written AS w) AS in_time
