-- Locks: none that anyone waits for; everything here is new.

CREATE SEQUENCE duetime.schedule_revision;

-- A calendar and the task it makes at each of its fire times. Kept in the first database only, as the queues are.
CREATE TABLE duetime.schedule (
    name          text PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9._-]{1,128}$'),
    -- Rises with every write and is never the same twice, not even when the schedule was deleted and made again: whoever writes
    -- compares it with what he read.
    revision      bigint NOT NULL DEFAULT nextval('duetime.schedule_revision'),
    rules         jsonb NOT NULL,
    payload       bytea NOT NULL,
    -- The first fire time that is not decided; beside it, only fire times after `since` are to come.
    next_at       timestamptz,
    since         timestamptz NOT NULL,
    paused_at     timestamptz,
    -- A fire time that waits until the last task is finished.
    buffered_at   timestamptz,
    -- The next moment somebody must look. NULL: not before it is changed.
    wake_at       timestamptz,
    last_fire_at  timestamptz,
    last_task     uuid,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

CREATE INDEX schedule_wake ON duetime.schedule (wake_at) WHERE wake_at IS NOT NULL;

-- Fire times that are decided and whose tasks are not known to be written. A task may live in another database; here it is
-- remembered, with its id and everything it needs, until it is there.
CREATE TABLE duetime.fire (
    id        uuid PRIMARY KEY,
    schedule  text NOT NULL,
    fire_at   timestamptz NOT NULL,
    buffered  boolean NOT NULL,
    rules     jsonb NOT NULL,
    payload   bytea NOT NULL,
    -- When the next node may take it on.
    wake_at   timestamptz NOT NULL
);

CREATE INDEX fire_wake ON duetime.fire (wake_at);
