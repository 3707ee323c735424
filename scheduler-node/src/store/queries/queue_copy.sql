-- Copies queues into a database that is not their home, so that duetime.submit and duetime.cancel know their policies
-- there.
-- Guard: a queue that has turned since the caller's revision stays, or stays deleted: the caller has not read that
-- change, and a node that has may have copied it. A copy from before the turn was noted here can still come late; the
-- caller compares the whole copy at intervals.
-- A queue that is as the caller has it is not written.
-- $1 names; $2 policies (pairwise); $3 names; $4 false: deletes the queues in $3; true: deletes all others; $5 the
-- revision of the queues that the caller knows.
WITH newer AS MATERIALIZED (
    SELECT t.queue FROM duetime.queue_turn AS t WHERE t.revision > $5
), gone AS (
    DELETE FROM duetime.queue AS q
     WHERE (q.name = ANY($3::text[])) <> $4 AND q.name <> ALL(ARRAY(SELECT n.queue FROM newer AS n))
)
INSERT INTO duetime.queue AS q (name, policy)
SELECT c.name, c.policy::jsonb
  FROM unnest($1::text[], $2::text[]) AS c (name, policy)
 WHERE c.name <> ALL(ARRAY(SELECT n.queue FROM newer AS n))
   AND NOT EXISTS (SELECT FROM duetime.queue AS k WHERE k.name = c.name AND k.policy = c.policy::jsonb)
 ORDER BY c.name
    ON CONFLICT (name) DO UPDATE SET policy = excluded.policy, updated_at = clock_timestamp()
 WHERE q.policy IS DISTINCT FROM excluded.policy
