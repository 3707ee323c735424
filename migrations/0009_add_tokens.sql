-- Locks: ACCESS EXCLUSIVE on meta for the moment in which the column is added; no table is rewritten. All else is new.

-- Rises with every token that is made or revoked, so that nodes notice one with a single small read.
ALTER TABLE duetime.meta ADD COLUMN token_revision bigint NOT NULL DEFAULT 0;

-- Who is let in beside the tokens of the configuration. Kept in the first database only; nodes hold a copy of what is not revoked.
CREATE TABLE duetime.token (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text NOT NULL CHECK (name ~ '^[A-Za-z0-9._-]{1,128}$'),
    role        text NOT NULL CHECK (role IN ('viewer', 'producer', 'operator')),
    -- Names, or starts of names and `*`. NULL: all queues.
    queues      text[] CHECK (cardinality(queues) > 0),
    -- Of the token, which is kept nowhere. It is 256 random bits, so a plain hash of it cannot be searched.
    sha256      bytea NOT NULL UNIQUE CHECK (octet_length(sha256) = 32),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by  text NOT NULL,
    expires_at  timestamptz,
    revoked_at  timestamptz,
    revoked_by  text,
    CHECK ((revoked_at IS NULL) = (revoked_by IS NULL))
);

-- One token of a name at a time. What is revoked stays for a while, so that the audit can be read.
CREATE UNIQUE INDEX token_name ON duetime.token (name) WHERE revoked_at IS NULL;
