-- Pauses or resumes a queue. The revision rises with it.
-- Guard: as in queue_put.sql, the statement waits for the claims in flight.
-- $1 name; $2 paused. Returns the queue as it is now and the revision; no row: there is no such queue.
WITH waited AS MATERIALIZED (
    SELECT duetime.await_claims() AS done
), paused AS (
    UPDATE duetime.queue SET paused = $2, updated_at = clock_timestamp()
      FROM waited
     WHERE waited.done AND name = $1
    RETURNING name, policy, paused, created_at, updated_at
), noticed AS (
    UPDATE duetime.meta SET queue_revision = queue_revision + 1 WHERE EXISTS (SELECT FROM paused) RETURNING queue_revision AS revision
), turned AS (
    INSERT INTO duetime.queue_turn (queue, revision) SELECT $1, n.revision FROM noticed AS n
        ON CONFLICT (queue) DO UPDATE SET revision = excluded.revision
    RETURNING placed, reports_since
)
SELECT p.name, p.policy, p.paused, p.created_at, p.updated_at, n.revision, t.placed, t.reports_since
  FROM paused AS p CROSS JOIN noticed AS n CROSS JOIN turned AS t
