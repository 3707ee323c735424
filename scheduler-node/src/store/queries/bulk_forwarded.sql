-- Tells which of these finished tasks are messages of a delay exchange, which have an envelope and need no queue.
-- $1 drop_on and $2 id, in one order. Returns the ids of those that are in the archive.
SELECT a.id
  FROM unnest($1::date[], $2::uuid[]) AS found (drop_on, id)
 CROSS JOIN LATERAL (SELECT id, envelope FROM duetime.archive WHERE drop_on = found.drop_on AND id = found.id LIMIT 1) AS a
 WHERE a.envelope IS NOT NULL
