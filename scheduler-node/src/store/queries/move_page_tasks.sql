-- Reads a page of a shard's unfinished tasks that are not ready, by wake time. A row that wakes at another time
-- meanwhile may be missed or read twice; it is noted as a change.
-- $1 shard; $2 and $3 the wake time and the id after which to read; $4 the most rows; $5 the bytes beyond which no
-- further row is read; $6 whether the rows are wanted, not only their ids.
-- Returns one row: the rows as the text of an array, their ids, bytes, and the last wake time and id (NULL: there are
-- no more).
WITH sized AS MATERIALIZED (
    SELECT t.wake_at, t.id, octet_length(t.payload) + 500 AS bytes
      FROM duetime.task AS t
     WHERE t.shard = $1 AND t.state <> 'ready' AND (t.wake_at, t.id) > ($2::timestamptz, $3::uuid)
     ORDER BY t.wake_at, t.id
     LIMIT $4
), kept AS MATERIALIZED (
    SELECT s.* FROM (SELECT sized.*, sum(bytes) OVER (ORDER BY wake_at, id) - bytes AS before FROM sized) AS s WHERE s.before < $5
)
SELECT CASE WHEN $6 THEN (SELECT array_agg(t) FROM duetime.task AS t WHERE t.id = ANY(ARRAY(SELECT id FROM kept)))::text END AS rows,
       ARRAY(SELECT id FROM kept) AS ids, (SELECT coalesce(sum(bytes), 0)::bigint FROM kept) AS bytes,
       (SELECT wake_at FROM kept ORDER BY wake_at DESC, id DESC LIMIT 1) AS wake_at, (SELECT id FROM kept ORDER BY wake_at DESC, id DESC LIMIT 1) AS id
