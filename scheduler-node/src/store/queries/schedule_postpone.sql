-- Postpones the look at schedules that cannot be decided at the moment, on all nodes.
-- Guard: each schedule still has the revision that was read.
-- The statement skips a schedule that another transaction locks, so it waits for none of them while it holds others.
-- $1 names; $2 the revisions that were read (pairwise); $3 the delay.
-- Returns the revisions of those that another transaction holds, or that are gone.
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::bigint[]) AS a (name, revision)
), free AS MATERIALIZED (
    SELECT s.name FROM duetime.schedule AS s WHERE s.name = ANY ($1) ORDER BY s.name FOR NO KEY UPDATE SKIP LOCKED
), postponed AS (
    UPDATE duetime.schedule AS s
       SET wake_at = clock_timestamp() + $3
      FROM asked AS a
     WHERE s.name = a.name AND s.revision = a.revision AND s.name = ANY(ARRAY(SELECT f.name FROM free AS f))
)
SELECT a.revision FROM asked AS a LEFT JOIN free AS f ON f.name = a.name WHERE f.name IS NULL
