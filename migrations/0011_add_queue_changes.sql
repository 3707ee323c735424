-- Locks: ACCESS EXCLUSIVE on the queues, for an instant: the new column has a constant default, and the table is
-- small. Nodes that read or write a queue wait that long.

-- The revision at which a queue was last written, so that a node reads only the queues that changed.
ALTER TABLE duetime.queue ADD COLUMN revision bigint NOT NULL DEFAULT 0;
CREATE INDEX queue_revision ON duetime.queue (revision);

-- Pages by name, in the order of the bytes, which is the same in every database and in every node.
CREATE INDEX queue_page ON duetime.queue (name COLLATE "C");

-- Queues that were deleted lately.
CREATE TABLE duetime.queue_gone (
    name      text PRIMARY KEY,
    revision  bigint NOT NULL
);
CREATE INDEX queue_gone_revision ON duetime.queue_gone (revision);

-- Revisions are committed in their order: every writer locks the row that counts them before it locks a queue. A
-- statement that writes queues raises the revision by one. Its rows get that revision, which this function notes when
-- the statement begins. Nodes of the previous version do the same.
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

CREATE TRIGGER queue_writing BEFORE INSERT OR UPDATE OR DELETE ON duetime.queue FOR EACH STATEMENT EXECUTE FUNCTION duetime.queue_writing();
CREATE TRIGGER queue_written BEFORE INSERT OR UPDATE ON duetime.queue FOR EACH ROW EXECUTE FUNCTION duetime.queue_written();
