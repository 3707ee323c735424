-- Takes in tasks that have a key or wait for others. Each request says what to do when its key exists already. The
-- answers, one a task, come in no order.
-- Guard: in the function duetime.task_put, key by key under a lock of that key. The statement takes the tasks in the
-- order of their keys, so that two batches never wait for each other's locks. Before any key it locks, in their order
-- too, the partitions in which a task is to wait for others. So two tasks that would wait for each other cannot come
-- in unseen at one moment.
-- When another transaction holds a task with the same key, or a move has left a row with it, the answer is `busy`, and
-- the other tasks go in.
-- A shard that has moved to another database fails the statement (DT001), also where it would write nothing.
-- An id that exists already was sent before, and is answered `created`. One that has replaced a task has left a note
-- with that answer.
-- $1..$16 the columns; $17 what to do when the key exists; $18 how long a finished task holds its key; $19 how long a
-- superseded task is kept; $20 the dependencies (JSON array of names); $21 and $22 the time window of this sending
-- (see the function; $21 is NULL for a first sending); $23 the revision of the queues by which the tasks were admitted
-- and got their shards. Of a queue whose rules for submissions have changed since $23 (queue_put.sql), nothing is
-- written (`rules_changed`). A change of a queue waits for the sendings in flight, so an id that does not exist by then
-- is not written later either.
-- Returns each task's id as sent, the outcome, the task that exists now, and the database's time.
WITH locked AS MATERIALIZED (
    SELECT duetime.lock_partitions($9::text[], $20::text[]) AS partitions
), placed AS MATERIALIZED (
    SELECT duetime.require_place($2::int[]) AS is_here
), gate AS MATERIALIZED (                                               -- ROW SHARE lock on the table: see task_submit
    SELECT s.id FROM duetime.shard AS s WHERE s.id = -1 FOR SHARE OF s
), rules_changed AS MATERIALIZED (
    SELECT q.queue FROM duetime.queue_turn AS q WHERE q.revision > $23 AND q.placed > $23
)
SELECT f.id AS asked_id, p.outcome, p.id, p.state::text AS state, p.due_at, p.created_at, p.version, p.superseded,
       clock_timestamp() AS now
  FROM (SELECT f.*,
               CASE WHEN f.queue = ANY(ARRAY(SELECT queue FROM rules_changed))
                    THEN NOT EXISTS (SELECT FROM duetime.task_sent(f.id)) AND duetime.receive_answer(f.id) IS NULL
                    ELSE false END AS has_other_rules
          FROM unnest(
               $1::uuid[], $2::int[], $3::text[], $4::timestamptz[], $5::smallint[], $6::bytea[], $7::text[], $8::text[],
               $9::text[], $10::int[], $11::bigint[], $12::text[], $13::timestamptz[], $14::text[], $15::bigint[], $16::boolean[],
               $17::text[], $18::bigint[], $19::bigint[], $20::text[])
            AS f (id, shard, queue, due_at, priority, payload, content_type, headers, partition_key, max_attempts, timeout_ms,
                  retry, expires_at, key, version, now, on_duplicate, window_ms, keep_ms, depends_on)
         WHERE (SELECT partitions FROM locked) >= (SELECT count(*) FROM gate)     -- locks the partitions first
           AND (SELECT is_here FROM placed)
         ORDER BY f.queue, f.partition_key, f.key, f.id
        OFFSET 0) AS f                                                  -- sorts before it calls the function
 CROSS JOIN LATERAL (
       SELECT 'rules_changed' AS outcome, f.id, 'scheduled'::duetime.task_state AS state, f.due_at, clock_timestamp() AS created_at, f.version,
              0::bigint AS superseded
        WHERE f.has_other_rules
        UNION ALL
       SELECT p.* FROM duetime.task_put(
       f.id, f.shard, f.queue, f.due_at, f.now, f.priority, f.payload, f.content_type, f.headers::jsonb, f.partition_key,
       f.max_attempts, f.timeout_ms, f.retry::jsonb, f.expires_at, f.key, f.version, f.on_duplicate,
       f.window_ms * interval '1 ms', f.keep_ms,
       CASE WHEN f.depends_on IS NOT NULL THEN ARRAY(SELECT jsonb_array_elements_text(f.depends_on::jsonb)) END,
       coalesce($21::timestamptz, '-infinity'), $22) AS p
        WHERE NOT f.has_other_rules) AS p
