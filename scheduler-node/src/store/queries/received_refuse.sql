-- Keeps rows of another database's inbox from arriving here, and returns those that have not arrived.
-- Guard: the first statement that notes the id decides. This one waits for a row that is arriving at the same moment.
-- The answer `withheld` marks an id as refused here, so each later call returns it too: the row may still be in its
-- inbox, whichever node noted the id. A note without it is of a row that has arrived.
-- $1 ids; $2 the source database. Returns the ids that have not arrived.
INSERT INTO duetime.received AS r (id, source, answer)
SELECT asked.id, $2, '{"outcome": "withheld"}'::jsonb FROM unnest($1::uuid[]) AS asked (id) ORDER BY asked.id
    ON CONFLICT (id) DO UPDATE SET source = r.source WHERE r.answer ->> 'outcome' = 'withheld'
RETURNING id
