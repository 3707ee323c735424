-- Finds a row of the inbox by its id, with the reason if it was refused.
-- $1 id. No row: the inbox does not have it.
SELECT i.error FROM duetime.inbox AS i WHERE i.id = $1
