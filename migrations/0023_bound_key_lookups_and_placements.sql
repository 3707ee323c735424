-- Locks: ACCESS EXCLUSIVE on queue_turn and inbox for the moment in which the columns are added; no table is
-- rewritten. SHARE on the archive's partitions while the index is built: keyed tasks that finish wait, reads go on.
-- The migration reads each partition once.

-- The revision at which each queue's placement last changed. An insert presents the revision by which its tasks got
-- their shards, and writes no task of a queue whose placement has changed since.
ALTER TABLE duetime.queue_turn ADD COLUMN placed bigint NOT NULL DEFAULT 0;

-- The placement that is in force now: a function sees data that was committed while its caller waited.
CREATE FUNCTION duetime.queue_placement(p_queue text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN coalesce((SELECT q.policy ->> 'placement' FROM duetime.queue AS q WHERE q.name = p_queue), 'spread');
END
$$;

-- The finished tasks of a key that ended last; the tasks that hold the key (see key_finished) are apart from the
-- others.
CREATE INDEX archive_key_finished
    ON duetime.archive (queue, key, coalesce(partition_key, ''), (state IN ('succeeded', 'dead')), finished_at) WHERE key IS NOT NULL;

-- Set when a row was cancelled in SQL before a node collected it, while its shard is in another database. That
-- database then makes a cancelled task of the row.
ALTER TABLE duetime.inbox ADD COLUMN cancelled_at timestamptz;
