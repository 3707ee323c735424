-- Stores a message that could not be read, before the node acks it.
-- $1 the source; $2 why it could not be read; $3 message id; $4 headers; $5 the first bytes of the body; $6 the
-- body's size; $7 the properties as they came over the wire, of a message that no client can parse.
INSERT INTO duetime.quarantine (source, reason, message_id, headers, body, body_bytes, properties)
VALUES ($1, $2, $3, $4, $5, $6, $7)
