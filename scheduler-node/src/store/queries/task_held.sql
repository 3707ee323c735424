-- Lists the tasks whose rows another transaction holds, so that no write waits for them. It locks the other rows until
-- it ends, and waits for none. A row that was deleted since the snapshot comes back too, and is missing the next time.
-- $1 ids. Returns the ids whose rows it could not lock.
WITH asked AS MATERIALIZED (
    SELECT DISTINCT a.id FROM unnest($1::uuid[]) AS a (id)
), free AS MATERIALIZED (
    SELECT t.id
      FROM asked AS a
      JOIN duetime.task AS t ON t.id = a.id
       FOR UPDATE OF t SKIP LOCKED
)
SELECT t.id
  FROM asked AS a
  JOIN duetime.task AS t ON t.id = a.id
 WHERE (SELECT count(*) FROM free) < (SELECT count(*) FROM asked)          -- only if a row was skipped or is gone
   AND a.id NOT IN (SELECT f.id FROM free AS f)
