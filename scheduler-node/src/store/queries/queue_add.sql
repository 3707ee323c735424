-- Adds queues on their first use unless they are there; the revision rises when one was not.
-- $1 names, $2 the policy of them all.
WITH added AS (
    INSERT INTO duetime.queue (name, policy)
    SELECT DISTINCT q.name, $2::jsonb FROM unnest($1::text[]) AS q (name) ORDER BY q.name     -- always in the same order: no deadlock
        ON CONFLICT (name) DO NOTHING
    RETURNING name
)
UPDATE duetime.meta SET queue_revision = queue_revision + 1 WHERE EXISTS (SELECT FROM added)
