-- Creates the schedules and their fire times.
-- Locks: none that another session waits for; everything here is new.

CREATE SEQUENCE duetime.schedule_revision;

-- A calendar and the task that it makes at each of its fire times. Only the first database keeps schedules, as it
-- does the queues.
CREATE TABLE duetime.schedule (
    name          text PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9._-]{1,128}$'),
    -- Rises with every write and is never the same twice, not even when the schedule was deleted and made again. A
    -- writer compares it with the revision that it read.
    revision      bigint NOT NULL DEFAULT nextval('duetime.schedule_revision'),
    rules         jsonb NOT NULL,
    payload       bytea NOT NULL,
    -- The first fire time that is not decided. Beside it, only fire times after `since` are to come.
    next_at       timestamptz,
    since         timestamptz NOT NULL,
    paused_at     timestamptz,
    -- A fire time that waits until the last task has finished.
    buffered_at   timestamptz,
    -- The next moment at which a node must look at the schedule. NULL: not before the schedule is changed.
    wake_at       timestamptz,
    last_fire_at  timestamptz,
    last_task     uuid,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

CREATE INDEX schedule_wake ON duetime.schedule (wake_at) WHERE wake_at IS NOT NULL;

-- Counts the schedules of a queue.
CREATE INDEX schedule_queue ON duetime.schedule ((rules ->> 'queue'));

-- Fire times that are decided and whose tasks are not known to be written. The task may live in another database.
-- Until it is there, this row keeps its id and everything that it needs.
CREATE TABLE duetime.fire (
    id        uuid PRIMARY KEY,
    schedule  text NOT NULL,
    fire_at   timestamptz NOT NULL,
    buffered  boolean NOT NULL,
    rules     jsonb NOT NULL,
    payload   bytea NOT NULL,
    -- When the next node may take the fire time over.
    wake_at   timestamptz NOT NULL
);

CREATE INDEX fire_wake ON duetime.fire (wake_at);
