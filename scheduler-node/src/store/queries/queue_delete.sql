-- Forgets a queue; the revision rises with it. Whether tasks of it are left is for the caller to ask of every database.
-- $1 name, $2 revisions for which a deletion is remembered. Returns its name; no row: there was no such queue.
WITH gone AS (
    DELETE FROM duetime.queue WHERE name = $1 RETURNING name
), noticed AS (
    UPDATE duetime.meta SET queue_revision = queue_revision + 1 WHERE EXISTS (SELECT FROM gone)
    RETURNING queue_revision
), remembered AS (
    INSERT INTO duetime.queue_gone (name, revision) SELECT gone.name, noticed.queue_revision FROM gone, noticed
        ON CONFLICT (name) DO UPDATE SET revision = excluded.revision
), forgotten AS (
    DELETE FROM duetime.queue_gone WHERE revision < (SELECT queue_revision - $2 FROM noticed) AND name <> $1
)
SELECT name FROM gone
