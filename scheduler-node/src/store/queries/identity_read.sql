-- Reads the id of this database.
SELECT id FROM duetime.identity
