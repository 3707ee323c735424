-- Locks: ACCESS EXCLUSIVE on meta for the moment in which the column is added; no table is rewritten. All else is new.

-- Rises with every token that is made or revoked, so that nodes notice a change with a single small read.
ALTER TABLE duetime.meta ADD COLUMN token_revision bigint NOT NULL DEFAULT 0;

-- Tokens that grant access beside those of the configuration. Only the first database keeps them; nodes hold a copy
-- of those that are not revoked.
CREATE TABLE duetime.token (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text NOT NULL CHECK (name ~ '^[A-Za-z0-9._-]{1,128}$'),
    role        text NOT NULL CHECK (role IN ('viewer', 'producer', 'operator')),
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
    CHECK ((revoked_at IS NULL) = (revoked_by IS NULL))
);

-- At most one unrevoked token of each name. Revoked tokens stay for a while, so that the audit can be read.
CREATE UNIQUE INDEX token_name ON duetime.token (name) WHERE revoked_at IS NULL;
