-- Reads one waiting row of the inbox by its id, to learn whether its request can be read.
-- $1 id; $2 whether to read the request; $3 the length of the longest request in the table.
-- No row: it waits no longer. For `leaving` see inbox_read.sql.
SELECT i.id, i.submitted_at, i.leaving_at IS NOT NULL OR i.cancelled_at IS NOT NULL AS leaving,
       CASE WHEN $2 AND pg_column_size(i.request) <= $3 THEN i.request::text END AS request
  FROM duetime.inbox AS i
 WHERE i.id = $1 AND i.error IS NULL
