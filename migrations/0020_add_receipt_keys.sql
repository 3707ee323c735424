-- Locks: none that another session waits for; everything here is new.

-- The keys of delivery receipts (HMAC-SHA256). Only those of the first database count.
CREATE TABLE duetime.receipt_key (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key      bytea NOT NULL CHECK (octet_length(key) >= 32),
    made_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- A key of 244 random bits, from the server's strong generator.
CREATE FUNCTION duetime.new_receipt_key() RETURNS bytea LANGUAGE sql VOLATILE AS $$
    SELECT sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))
$$;

-- Makes a new key and deletes all but the one before it. Nodes accept the new key within 10 s and use it after a
-- minute. Receipts of the previous key stay genuine until the next call, so call it again once the tasks in flight
-- have been answered.
CREATE FUNCTION duetime.rotate_receipt_key() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- One rotation at a time.
    LOCK TABLE duetime.receipt_key IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT 1 FROM duetime.receipt_key WHERE made_at > clock_timestamp() - interval '2 minutes'
                                                   AND id > (SELECT min(id) FROM duetime.receipt_key)) THEN
        RAISE EXCEPTION 'the last rotation is less than two minutes old: its key is not in use on every node yet';
    END IF;
    INSERT INTO duetime.receipt_key (key) VALUES (duetime.new_receipt_key());
    DELETE FROM duetime.receipt_key WHERE id NOT IN (SELECT id FROM duetime.receipt_key ORDER BY id DESC LIMIT 2);
END
$$;

REVOKE ALL ON duetime.receipt_key FROM PUBLIC;
REVOKE ALL ON FUNCTION duetime.new_receipt_key(), duetime.rotate_receipt_key() FROM PUBLIC;

INSERT INTO duetime.receipt_key (key) VALUES (duetime.new_receipt_key());
