-- Keeps rows of another database's inbox from arriving here, and returns those that had not arrived.
-- Guard: the first statement that notes the id decides. This one waits for a row that is arriving at the same moment.
-- $1 ids; $2 the source database. Returns the ids that had not arrived.
INSERT INTO duetime.received (id, source)
SELECT asked.id, $2 FROM unnest($1::uuid[]) AS asked (id) ORDER BY asked.id
    ON CONFLICT (id) DO NOTHING
RETURNING id
