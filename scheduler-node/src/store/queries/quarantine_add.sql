-- Stores messages that could not be read, before the node acks them. All of them are stored, or none.
-- $1..$7 the columns: the source; why it could not be read; message id; headers; the first bytes of the body; the
-- body's size; the properties as they came over the wire, of a message that no client can parse.
INSERT INTO duetime.quarantine (source, reason, message_id, headers, body, body_bytes, properties)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::jsonb[], $5::bytea[], $6::bigint[], $7::bytea[])
