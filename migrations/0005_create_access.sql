-- Creates the tokens of callers, the keys of delivery receipts, and the audit.
-- Locks: none that another session waits for; everything here is new.

-- Tokens that grant access beside those of the configuration. Only the first database keeps them; nodes hold a copy
-- of those that are not revoked.
CREATE TABLE duetime.token (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text NOT NULL CHECK (name ~ '^[A-Za-z0-9._-]{1,128}$'),
    role        text NOT NULL
                CHECK (role IN ('metrics', 'submitter', 'reporter', 'observer', 'viewer', 'producer', 'operator')),
    -- Names, or starts of names and `*`. NULL: all queues.
    queues      text[] CHECK (cardinality(queues) > 0),
    -- The hash of the token; the token itself is kept nowhere. A token is 256 random bits, so no search can find it
    -- from a plain hash.
    sha256      bytea NOT NULL UNIQUE CHECK (octet_length(sha256) = 32),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by  text NOT NULL,
    expires_at  timestamptz,
    revoked_at  timestamptz,
    revoked_by  text,
    -- Limits of the token; NULL: the token has none of its own.
    limits      jsonb,
    CHECK ((revoked_at IS NULL) = (revoked_by IS NULL))
);

-- At most one unrevoked token of each name. Revoked tokens stay for a while, so that the audit can be read.
CREATE UNIQUE INDEX token_name ON duetime.token (name) WHERE revoked_at IS NULL;

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

-- The actions of people and programs, and how each was answered. Only the first database keeps them, for as long as
-- `audit.keep_days` says.
CREATE TABLE duetime.audit (
    -- The node makes the id, so that an entry that is written again is the same row.
    id          uuid PRIMARY KEY,
    at          timestamptz NOT NULL,
    who         text NOT NULL,
    what        text NOT NULL,
    target      text NOT NULL,
    -- The address of the connected client: a proxy, where there is one.
    address     text,
    -- The HTTP status of the answer.
    status      integer NOT NULL,
    detail      text,
    request_id  text,
    node        text NOT NULL,
    -- The id of the token that the caller used. A name can be given to another token once the first is revoked; an id
    -- cannot. NULL: a token of the configuration, a person of an identity provider, or no caller.
    who_id      bigint
);

-- Pages, newest first, and entries that are old enough to be deleted.
CREATE INDEX audit_at ON duetime.audit (at, id);
