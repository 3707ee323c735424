-- Reads a page of a shard's finished tasks in one partition. No index names the shard: the statement walks the ids of
-- the partition, which name it, and reads the rows of the shard only.
-- $1 shard; $2 the day of the partition; $3 the id after which to read; $4 how many ids to walk over; $5 the most rows;
-- $6 the bytes beyond which no further row is read; $7 whether the rows are wanted, not only their ids.
-- Returns one row: the rows as the text of an array, their ids, bytes, and the id up to which the partition is read
-- (NULL: to its end).
WITH walked AS MATERIALIZED (
    SELECT a.id FROM duetime.archive AS a WHERE a.drop_on = $2 AND a.id > $3 ORDER BY a.id LIMIT $4
), mine AS MATERIALIZED (
    SELECT w.id FROM walked AS w WHERE duetime.shard_in(w.id) = $1 ORDER BY w.id LIMIT $5 + 1
), sized AS MATERIALIZED (
    SELECT m.id, duetime.row_bytes(a.payload, a.result, a.status_msg, a.headers, a.envelope, a.history, NULL, NULL) AS bytes
      FROM (SELECT id FROM mine ORDER BY id LIMIT $5) AS m
      JOIN duetime.archive AS a ON a.drop_on = $2 AND a.id = m.id
), kept AS MATERIALIZED (
    SELECT s.* FROM (SELECT sized.*, sum(bytes) OVER (ORDER BY id) - bytes AS before FROM sized) AS s WHERE s.before < $6
)
SELECT CASE WHEN $7 THEN (SELECT array_agg(a) FROM duetime.archive AS a
                           WHERE a.drop_on = $2 AND a.id = ANY(ARRAY(SELECT id FROM kept)))::text END AS rows,
       ARRAY(SELECT id FROM kept) AS ids, (SELECT coalesce(sum(bytes), 0)::bigint FROM kept) AS bytes,
       CASE WHEN (SELECT count(*) FROM kept) < (SELECT count(*) FROM mine) THEN (SELECT id FROM kept ORDER BY id DESC LIMIT 1)
            WHEN (SELECT count(*) FROM walked) = $4 THEN (SELECT id FROM walked ORDER BY id DESC LIMIT 1) END AS id
