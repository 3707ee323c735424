-- Adds queues on their first use unless they are there, the first by name as far as there is room; the revision rises when one was added.
-- $1 names, $2 the policy of them all, $3 who asks or NULL, $4 the most queues in all, $5 the most queues of one caller. Without $3
-- there is always room. Two statements at the same moment do not see each other's queues and may exceed the limits by their names.
WITH room AS (
    SELECT CASE WHEN $3::text IS NULL THEN NULL     -- LIMIT NULL is no limit
           ELSE greatest(0, least($4::int8 - count(*), $5::int8 - count(*) FILTER (WHERE q.created_by = $3))) END AS free
      FROM duetime.queue q
), missing AS (
    SELECT DISTINCT n.name FROM unnest($1::text[]) AS n (name)
     WHERE NOT EXISTS (SELECT FROM duetime.queue q WHERE q.name = n.name)
     ORDER BY n.name LIMIT (SELECT free FROM room)
), added AS (
    INSERT INTO duetime.queue (name, policy, created_by)
    SELECT name, $2::jsonb, $3 FROM missing ORDER BY name     -- always in the same order: no deadlock
        ON CONFLICT (name) DO NOTHING
    RETURNING name
)
UPDATE duetime.meta SET queue_revision = queue_revision + 1 WHERE EXISTS (SELECT FROM added)
