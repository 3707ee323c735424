-- Keeps a message that could not be read, before it is acked.
-- $1 where it came from, $2 why it could not be read, $3 its message id, $4 its headers, $5 the first bytes of its body, $6 the body's size,
-- $7 its properties as they came over the wire, where nothing could read them.
INSERT INTO duetime.quarantine (source, reason, message_id, headers, body, body_bytes, properties)
VALUES ($1, $2, $3, $4, $5, $6, $7)
