-- Deletes a queue; the revision rises with it. The caller asks every database whether tasks of the queue are left.
-- Guard: as in queue_put.sql, the statement waits for the claims in flight, and for the inserts that were admitted by
-- the queue's policy. It looks for their tasks afterwards, in this database alone.
-- $1 name; $2 the number of revisions for which the database remembers a deletion.
-- Returns the revision, and the revision at which the queue's rules for submissions last changed, which is the same: a
-- queue that does not exist may take no submissions; and when its `settle` last became `result`. No row: there was no
-- such queue, or it has tasks.
WITH waited AS MATERIALIZED (
    SELECT duetime.await_claims() AS done
), looked AS MATERIALIZED (
    SELECT duetime.queue_has_tasks($1) AS has_tasks FROM waited WHERE waited.done
), gone AS (
    DELETE FROM duetime.queue USING looked WHERE NOT looked.has_tasks AND name = $1 RETURNING name
), noticed AS (
    UPDATE duetime.meta SET queue_revision = queue_revision + 1 WHERE EXISTS (SELECT FROM gone) RETURNING queue_revision AS revision
), turned AS (
    INSERT INTO duetime.queue_turn AS q (queue, revision, placed)
    SELECT $1, n.revision, n.revision FROM noticed AS n
        ON CONFLICT (queue) DO UPDATE SET revision = excluded.revision, placed = greatest(q.placed, excluded.placed)
    RETURNING placed, reports_since
), remembered AS (
    INSERT INTO duetime.queue_gone (name, revision) SELECT g.name, n.revision FROM gone AS g CROSS JOIN noticed AS n
        ON CONFLICT (name) DO UPDATE SET revision = excluded.revision
), forgotten AS (
    DELETE FROM duetime.queue_gone WHERE revision < (SELECT n.revision - $2 FROM noticed AS n) AND name <> $1
)
SELECT n.revision, t.placed, t.reports_since FROM noticed AS n CROSS JOIN turned AS t
