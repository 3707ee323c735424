-- Reads a page of a shard's unfinished tasks that are not ready, by wake time. A row that wakes at another time
-- meanwhile may be missed or read twice; it is noted as a change.
-- task_wake has no ids, so a read enters a wake time only at its first row. Where another page of tasks or more wake
-- with the last one, their ids are read ahead for the pages that follow: each of those would read all of them again.
-- $1 shard; $2 and $3 the wake time and the id after which to read; $4 the most rows; $5 the bytes beyond which no
-- further row is read; $6 the next ids at $2, if they were read ahead: the page then reads these; $7 the most ids to
-- read ahead; $8 whether the rows are wanted, not only their ids.
-- Returns one row: the rows as the text of an array, their ids, bytes, the last wake time and id (NULL: there are no
-- more), and the ids that were read ahead (NULL: none). A row of $6 that is gone by now is among the ids only.
WITH ahead AS MATERIALIZED (
    (SELECT f.wake_at, f.id
       -- By wake time only: the index has this order, so the walk ends after the tasks that wake with the last one.
       FROM (SELECT t.wake_at, t.id
               FROM duetime.task AS t
              WHERE cardinality($6::uuid[]) = 0
                AND t.shard = $1 AND t.state <> 'ready' AND (t.wake_at, t.id) > ($2::timestamptz, $3::uuid)
              ORDER BY t.wake_at
              FETCH FIRST ($4) ROWS WITH TIES) AS f
      ORDER BY f.wake_at, f.id
      LIMIT $7)
    UNION ALL
    SELECT $2::timestamptz, asked.id FROM unnest($6::uuid[]) AS asked (id)
), sized AS MATERIALIZED (
    SELECT a.wake_at, a.id, coalesce(duetime.row_bytes(t.payload, NULL, NULL, t.headers, t.envelope, t.history, t.depends_on, t.depends_met), 0) AS bytes
      FROM (SELECT wake_at, id FROM ahead ORDER BY wake_at, id LIMIT $4) AS a
      LEFT JOIN duetime.task AS t ON t.id = a.id
), kept AS MATERIALIZED (
    SELECT s.* FROM (SELECT sized.*, sum(bytes) OVER (ORDER BY wake_at, id) - bytes AS before FROM sized) AS s WHERE s.before < $5
), last AS MATERIALIZED (
    SELECT wake_at, id FROM kept ORDER BY wake_at DESC, id DESC LIMIT 1
)
SELECT CASE WHEN $8 THEN (SELECT array_agg(t) FROM duetime.task AS t WHERE t.id = ANY(ARRAY(SELECT id FROM kept)))::text END AS rows,
       ARRAY(SELECT id FROM kept) AS ids, (SELECT coalesce(sum(bytes), 0)::bigint FROM kept) AS bytes,
       last.wake_at, last.id,
       (SELECT array_agg(a.id ORDER BY a.id) FROM ahead AS a WHERE a.wake_at = last.wake_at AND a.id > last.id HAVING count(*) >= $4) AS ahead
  FROM (SELECT) AS always
  LEFT JOIN last ON true
