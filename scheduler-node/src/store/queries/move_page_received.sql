-- Reads a page of a shard's notes, of rows that came from another database's inbox and of submissions that replaced a
-- task, as move_page_archive.sql reads its finished tasks. The bytes are those of the rows' text; without rows, none.
-- $1 shard; $2 the id after which to read; $3 how many ids to walk over; $4 whether the rows are wanted.
WITH walked AS MATERIALIZED (
    SELECT r.id FROM duetime.received AS r WHERE r.id > $2 ORDER BY r.id LIMIT $3
), kept AS MATERIALIZED (
    SELECT w.id FROM walked AS w WHERE duetime.shard_in(w.id) = $1
), text AS MATERIALIZED (
    SELECT CASE WHEN $4 THEN (SELECT array_agg(r) FROM duetime.received AS r WHERE r.id = ANY(ARRAY(SELECT id FROM kept)))::text END AS rows
)
SELECT t.rows, ARRAY(SELECT id FROM kept) AS ids, coalesce(octet_length(t.rows), 0)::bigint AS bytes,
       CASE WHEN (SELECT count(*) FROM walked) = $3 THEN (SELECT id FROM walked ORDER BY id DESC LIMIT 1) END AS id
  FROM text AS t
