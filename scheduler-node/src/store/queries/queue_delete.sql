-- Deletes a queue; the revision rises with it. The caller asks every database whether tasks of the queue are left.
-- Guard: as in queue_put.sql, the statement waits for the claims in flight, and for the inserts that were admitted by
-- the queue's policy. It looks for their tasks afterwards, in this database alone.
-- $1 name; $2 the number of revisions for which the database remembers a deletion, and the turn of a queue that does
-- not exist: no node is further behind; $3 the limit of turns that the statement forgets.
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
), outdated AS (
    -- A turn that another statement has renewed meanwhile stays, because its revision is read anew.
    DELETE FROM duetime.queue_turn AS q
     USING (SELECT t.queue
              FROM duetime.queue_turn AS t
             WHERE t.revision < (SELECT n.revision - $2 FROM noticed AS n) AND t.queue <> $1
               AND NOT EXISTS (SELECT FROM duetime.queue AS k WHERE k.name = t.queue)
             ORDER BY t.revision
             LIMIT $3) AS found
     WHERE q.queue = found.queue AND q.revision < (SELECT n.revision - $2 FROM noticed AS n)
)
SELECT n.revision, t.placed, t.reports_since FROM noticed AS n CROSS JOIN turned AS t
