-- Adds queues on their first use, the first by name as far as there is room. Queues that exist stay as they are. The
-- revision rises when a queue was added.
-- $1 names; $2 the policy of all of them; $3 the caller or NULL; $4 the limit of queues in all; $5 the limit of
-- queues of one caller. Without $3 there is always room. Two concurrent statements do not see each other's queues and
-- may exceed the limits by the queues that they add.
WITH room AS (
    SELECT CASE WHEN $3::text IS NULL THEN NULL     -- LIMIT NULL means no limit
           ELSE greatest(0, least($4::int8 - count(*), $5::int8 - count(*) FILTER (WHERE q.created_by = $3))) END AS free
      FROM duetime.queue q
), missing AS (
    SELECT DISTINCT n.name FROM unnest($1::text[]) AS n (name)
     WHERE NOT EXISTS (SELECT FROM duetime.queue q WHERE q.name = n.name)
     ORDER BY n.name LIMIT (SELECT free FROM room)
), added AS (
    INSERT INTO duetime.queue (name, policy, created_by)
    SELECT name, $2::jsonb, $3 FROM missing ORDER BY name     -- one order for all statements: no deadlock
        ON CONFLICT (name) DO NOTHING
    RETURNING name
)
UPDATE duetime.meta SET queue_revision = queue_revision + 1 WHERE EXISTS (SELECT FROM added)
