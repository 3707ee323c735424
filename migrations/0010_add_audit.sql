-- Locks: none that anyone waits for; everything here is new.

-- Who did what by hand or by program, and how it was answered. Kept in the first database only, for as long as `audit.keep_days` says.
CREATE TABLE duetime.audit (
    -- Made by the node, so that a note that is written again is the same.
    id          uuid PRIMARY KEY,
    at          timestamptz NOT NULL,
    who         text NOT NULL,
    what        text NOT NULL,
    target      text NOT NULL,
    -- Of whoever was connected: a proxy, where there is one.
    address     text,
    -- Of HTTP.
    status      integer NOT NULL,
    detail      text,
    request_id  text,
    node        text NOT NULL
);

-- Pages, newest first, and what is old enough to go.
CREATE INDEX audit_at ON duetime.audit (at, id);
