-- Keeps rows of another database's inbox from arriving here, and returns those that are no tasks.
-- Guard: the first statement that notes the id decides. This one waits for a row that is arriving at the same moment.
-- The answer `withheld` marks an id as refused here, so each later call returns it too: the row may still be in its
-- inbox, whichever node noted the id. So it returns a row that arrived and was refused then (task_collect_keyed.sql).
-- A task stands for any other row that is noted.
-- $1 ids; $2 the source database. Returns the ids for which no task stands.
INSERT INTO duetime.received AS r (id, source, answer)
SELECT asked.id, $2, '{"outcome": "withheld"}'::jsonb FROM unnest($1::uuid[]) AS asked (id) ORDER BY asked.id
    ON CONFLICT (id) DO UPDATE SET source = r.source
 WHERE r.answer ->> 'outcome' IN ('withheld', 'refused', 'stale', 'cycle', 'deep')
RETURNING id
