-- Creates the tables of what comes in and is not a task yet: the inbox of submissions in SQL, the notes of rows that
-- came from another database's inbox, and the quarantine of unreadable messages.
-- Locks: none that another session waits for; everything here is new.

-- Requests that applications submit inside their own transactions, until a node makes a task of each. That takes a
-- moment, unless the task belongs in another database that is unreachable. A request that cannot be a task stays,
-- with the reason.
CREATE TABLE duetime.inbox (
    id            uuid PRIMARY KEY,
    -- The shard in which the task is to live; the id says the same.
    shard         integer NOT NULL,
    -- In the form of the body of `POST /v1/tasks`.
    request       jsonb NOT NULL,
    submitted_at  timestamptz NOT NULL,
    -- Set when the row goes into another database. It may be there already, so it can no longer be cancelled here.
    leaving_at    timestamptz,
    error         text,
    refused_at    timestamptz,
    -- Set when a row was cancelled in SQL before a node collected it, while its shard is in another database. That
    -- database then makes a cancelled task of the row.
    cancelled_at  timestamptz,
    CHECK ((error IS NULL) = (refused_at IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Rows that a node is still to collect, oldest first; and refused rows, oldest first.
CREATE INDEX inbox_waiting ON duetime.inbox (submitted_at) WHERE error IS NULL;
CREATE INDEX inbox_refused ON duetime.inbox (refused_at) WHERE error IS NOT NULL;

-- Rows that came here out of another database's inbox. A second copy of a row finds its id and does nothing, whatever
-- has become of the task. A node deletes a row when that inbox holds nothing so old any more.
CREATE TABLE duetime.received (
    id           uuid PRIMARY KEY,
    source       text NOT NULL,
    -- For a task with a key: its outcome.
    answer       jsonb,
    received_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX received_source ON duetime.received (source, received_at);

-- Notes that a row of the inbox of `p_source` has arrived. True the first time; a second caller waits until the first
-- has ended.
CREATE FUNCTION duetime.receive_begin(p_id uuid, p_source text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO duetime.received (id, source) VALUES (p_id, p_source) ON CONFLICT (id) DO NOTHING;
    RETURN FOUND;
END
$$;

-- Keeps the outcome of the first arrival, and returns it.
CREATE FUNCTION duetime.receive_end(p_id uuid, p_answer jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    -- The row has no outcome yet, so its next arrival is the first.
    IF p_answer ->> 'outcome' = 'busy' THEN
        DELETE FROM duetime.received WHERE id = p_id;
        RETURN p_answer;
    END IF;
    UPDATE duetime.received SET answer = p_answer WHERE id = p_id;
    RETURN p_answer;
END
$$;

-- The answer of the first arrival. It is a function of its own, because a function sees data that was committed while
-- its caller waited.
CREATE FUNCTION duetime.receive_answer(p_id uuid) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT r.answer FROM duetime.received AS r WHERE r.id = p_id);
END
$$;

-- Messages to Duetime that could not be read: kept for a person, never requeued.
CREATE TABLE duetime.quarantine (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source       text NOT NULL,
    reason       text NOT NULL,
    message_id   text,
    headers      jsonb,
    -- The first bytes only; `body_bytes` is the size of the whole body.
    body         bytea,
    received_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    body_bytes   bigint,
    -- The properties of a message that no client can parse, as they came over the wire.
    properties   bytea
);
