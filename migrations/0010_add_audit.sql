-- Locks: none that another session waits for; everything here is new.

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
    node        text NOT NULL
);

-- Pages, newest first, and entries that are old enough to be deleted.
CREATE INDEX audit_at ON duetime.audit (at, id);
