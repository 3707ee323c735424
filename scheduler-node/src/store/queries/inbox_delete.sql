-- Deletes rows that have arrived in another database.
-- Guard: the row is marked as leaving, as every row is that has arrived elsewhere.
-- $1 ids.
DELETE FROM duetime.inbox AS i WHERE i.id = ANY($1::uuid[]) AND i.leaving_at IS NOT NULL
