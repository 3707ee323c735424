-- Reads a page of a shard's tasks that wait for room, queue by queue and priority by priority, so that it uses
-- task_ready.
-- $1 shard; $2 queue, $3 priority, $4 lane, $5 due time and $6 id after which to read; $7 the most rows; $8 the bytes
-- beyond which no further row is read; $9 whether the rows are wanted, not only their ids.
-- Returns one row, as move_page_tasks.sql does.
WITH RECURSIVE hop (queue, found) AS (
    -- It ends where the queues before have a page of rows, all of which are later than $2: the page is full then, and
    -- never the last one.
    (SELECT queue, 0::bigint FROM duetime.task WHERE state = 'ready' AND queue >= $2 ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT t.queue FROM duetime.task AS t WHERE t.state = 'ready' AND t.queue > hop.queue ORDER BY t.queue LIMIT 1),
           hop.found + (SELECT count(*)
                          FROM generate_series(1, 5) AS l (priority)
                         CROSS JOIN LATERAL (
                               SELECT
                                 FROM duetime.task AS r
                                WHERE hop.queue > $2
                                  AND r.queue = hop.queue AND r.priority = l.priority::smallint AND r.shard = $1 AND r.state = 'ready'
                                ORDER BY coalesce('=' || r.partition_key, '-') COLLATE "C", r.due_at, r.id
                                LIMIT $7) AS mine)
      FROM hop
     WHERE hop.queue IS NOT NULL AND hop.found < $7
), begun AS MATERIALIZED (
    -- A condition of its own, so that the index is entered at the row after which to read.
    SELECT r.queue, r.priority::int AS priority, coalesce('=' || r.partition_key, '-') COLLATE "C" AS lane, r.due_at, r.id,
           duetime.row_bytes(r.payload, NULL, NULL, r.headers, r.envelope, r.history, r.depends_on, r.depends_met) AS bytes
      FROM duetime.task AS r
     WHERE r.queue = $2 AND r.priority = $3::smallint AND r.shard = $1 AND r.state = 'ready'
       AND (coalesce('=' || r.partition_key, '-') COLLATE "C", r.due_at, r.id) > ($4 COLLATE "C", $5::timestamptz, $6::uuid)
     ORDER BY coalesce('=' || r.partition_key, '-') COLLATE "C", r.due_at, r.id
     LIMIT $7
), sized AS MATERIALIZED (
    SELECT * FROM begun
    UNION ALL
    SELECT h.queue, l.priority, t.*
      FROM hop AS h
     CROSS JOIN generate_series(1, 5) AS l (priority)
     CROSS JOIN LATERAL (
           SELECT coalesce('=' || r.partition_key, '-') COLLATE "C" AS lane, r.due_at, r.id, duetime.row_bytes(r.payload, NULL, NULL, r.headers, r.envelope, r.history, r.depends_on, r.depends_met) AS bytes
             FROM duetime.task AS r
            WHERE r.queue = h.queue AND r.priority = l.priority::smallint AND r.shard = $1 AND r.state = 'ready'
            ORDER BY coalesce('=' || r.partition_key, '-') COLLATE "C", r.due_at, r.id
            LIMIT $7) AS t
     WHERE h.queue IS NOT NULL AND (h.queue > $2 OR l.priority > $3) AND (SELECT count(*) FROM begun) < $7
     ORDER BY queue, priority, lane, due_at, id
     LIMIT $7
), kept AS MATERIALIZED (
    SELECT s.* FROM (SELECT sized.*, sum(bytes) OVER (ORDER BY queue, priority, lane, due_at, id) - bytes AS before FROM sized) AS s WHERE s.before < $8
), last AS (
    SELECT * FROM kept ORDER BY queue DESC, priority DESC, lane DESC, due_at DESC, id DESC LIMIT 1
)
SELECT CASE WHEN $9 THEN (SELECT array_agg(t) FROM duetime.task AS t WHERE t.id = ANY(ARRAY(SELECT id FROM kept)))::text END AS rows,
       ARRAY(SELECT id FROM kept) AS ids, (SELECT coalesce(sum(bytes), 0)::bigint FROM kept) AS bytes,
       last.queue, last.priority, last.lane, last.due_at, last.id
  FROM (SELECT) AS always
  LEFT JOIN last ON true
