-- Copies all queues into a database that is not their home, so that duetime.submit and duetime.cancel know their policies there.
-- $1 names, $2 policies, pairwise.
WITH gone AS (
    DELETE FROM duetime.queue AS q WHERE q.name <> ALL($1::text[])
)
INSERT INTO duetime.queue AS q (name, policy)
SELECT c.name, c.policy::jsonb FROM unnest($1::text[], $2::text[]) AS c (name, policy) ORDER BY c.name
    ON CONFLICT (name) DO UPDATE SET policy = excluded.policy, updated_at = clock_timestamp()
 WHERE q.policy IS DISTINCT FROM excluded.policy
