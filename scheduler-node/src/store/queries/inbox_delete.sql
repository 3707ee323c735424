-- Deletes rows that have arrived in another database.
-- Guard: marked as leaving, which only what has arrived is here.
-- $1 ids.
DELETE FROM duetime.inbox AS i WHERE i.id = ANY($1::uuid[]) AND i.leaving_at IS NOT NULL
