-- Creates the queues with their policies, and the revisions by which nodes notice a change of them.
-- Locks: none that another session waits for; everything here is new.

-- A named kind of task with its policy. Only the first database keeps queues; nodes hold a copy.
CREATE TABLE duetime.queue (
    name        text PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9._-]{1,128}$'),
    policy      jsonb NOT NULL,
    paused      boolean NOT NULL DEFAULT false,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The revision at which the queue was last written, so that a node reads only the queues that changed.
    revision    bigint NOT NULL DEFAULT 0,
    -- The caller whose first submission made the queue; NULL where an operator or the configuration made it.
    created_by  text
);
CREATE INDEX queue_revision ON duetime.queue (revision);

-- Pages by name, in the order of the bytes, which is the same in every database and in every node.
CREATE INDEX queue_page ON duetime.queue (name COLLATE "C");

-- Queues that were deleted lately.
CREATE TABLE duetime.queue_gone (
    name      text PRIMARY KEY,
    revision  bigint NOT NULL
);
CREATE INDEX queue_gone_revision ON duetime.queue_gone (revision);

-- The revision at which each queue last turned, which means that its policy changed. Every database of the cluster
-- has this table. A claim presents the revision of the queues that its node knows, and starts no task of a queue that
-- has turned since. A queue without a row has not turned.
CREATE TABLE duetime.queue_turn (
    queue     text PRIMARY KEY,
    revision  bigint NOT NULL,
    -- The revision at which the queue's placement last changed. An insert presents the revision by which its tasks got
    -- their shards, and writes no task of a queue whose placement has changed since.
    placed    bigint NOT NULL DEFAULT 0
);
CREATE INDEX queue_turn_revision ON duetime.queue_turn (revision);

-- Revisions are committed in their order: every writer locks the row that counts them before it locks a queue. A
-- statement that writes queues raises the revision by one. Its rows get that revision, which this function notes when
-- the statement begins.
CREATE FUNCTION duetime.queue_writing() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_revision bigint;
BEGIN
    SELECT queue_revision + 1 INTO v_revision FROM duetime.meta FOR UPDATE;
    PERFORM set_config('duetime.queue_revision', coalesce(v_revision, 0)::text, true);
    RETURN NULL;
END
$$;

CREATE FUNCTION duetime.queue_written() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.revision := current_setting('duetime.queue_revision')::bigint;
    RETURN NEW;
END
$$;

CREATE TRIGGER queue_writing BEFORE INSERT OR UPDATE OR DELETE ON duetime.queue
    FOR EACH STATEMENT EXECUTE FUNCTION duetime.queue_writing();
CREATE TRIGGER queue_written BEFORE INSERT OR UPDATE ON duetime.queue
    FOR EACH ROW EXECUTE FUNCTION duetime.queue_written();

-- The placement that is in force now: a function sees data that was committed while its caller waited.
CREATE FUNCTION duetime.queue_placement(p_queue text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN coalesce((SELECT q.policy ->> 'placement' FROM duetime.queue AS q WHERE q.name = p_queue), 'spread');
END
$$;
