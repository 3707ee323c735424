-- Forgets a queue; the revision rises with it. Whether tasks of it are left is for the caller to ask of every database.
-- $1 name. Returns its name; no row: there was no such queue.
WITH gone AS (
    DELETE FROM duetime.queue WHERE name = $1 RETURNING name
), noticed AS (
    UPDATE duetime.meta SET queue_revision = queue_revision + 1 WHERE EXISTS (SELECT FROM gone)
)
SELECT name FROM gone
