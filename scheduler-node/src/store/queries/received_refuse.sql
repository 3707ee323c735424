-- Keeps rows of another database's inbox from arriving here, and tells which of them had not arrived.
-- Guard: whoever notes the id first. A row that is arriving at this moment is waited for.
-- $1 ids, $2 the database they come from. Returns the ids that had not arrived.
INSERT INTO duetime.received (id, source)
SELECT asked.id, $2 FROM unnest($1::uuid[]) AS asked (id) ORDER BY asked.id
    ON CONFLICT (id) DO NOTHING
RETURNING id
