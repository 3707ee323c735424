-- Whether a row with this id is in the inbox, and why it was refused if it was.
-- $1 id. No row: it is not here.
SELECT i.error FROM duetime.inbox AS i WHERE i.id = $1
