-- Keeps a message of ours that could not be read, before it is acked.
INSERT INTO duetime.quarantine (source, reason, message_id, headers, body) VALUES ($1, $2, $3, $4, $5)
