-- Copies queues into a database that is not their home, so that duetime.submit and duetime.cancel know their policies
-- there.
-- $1 names; $2 policies (pairwise); $3 names; $4 false: deletes the queues in $3; true: deletes all others.
WITH gone AS (
    DELETE FROM duetime.queue AS q WHERE (q.name = ANY($3::text[])) <> $4
)
INSERT INTO duetime.queue AS q (name, policy)
SELECT c.name, c.policy::jsonb FROM unnest($1::text[], $2::text[]) AS c (name, policy) ORDER BY c.name
    ON CONFLICT (name) DO UPDATE SET policy = excluded.policy, updated_at = clock_timestamp()
 WHERE q.policy IS DISTINCT FROM excluded.policy
