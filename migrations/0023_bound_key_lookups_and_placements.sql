-- Locks: ACCESS EXCLUSIVE on queue_turn and inbox for the moment in which the columns are added; no table is rewritten. SHARE on the archive's
-- partitions while the index is built: keyed tasks that finish wait, reads go on. Each partition is read once.

-- The revision at which each queue's placement last changed. An insert presents the revision by which its tasks were given their shards, and
-- writes no task of a queue that was placed anew since.
ALTER TABLE duetime.queue_turn ADD COLUMN placed bigint NOT NULL DEFAULT 0;

-- The placement that is in force now: a function sees what was committed while its caller waited.
CREATE FUNCTION duetime.queue_placement(p_queue text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN coalesce((SELECT q.policy ->> 'placement' FROM duetime.queue AS q WHERE q.name = p_queue), 'spread');
END
$$;

-- The finished tasks of a key that ended last, those that hold it (see key_finished) apart from the others.
CREATE INDEX archive_key_finished
    ON duetime.archive (queue, key, coalesce(partition_key, ''), (state IN ('succeeded', 'dead')), finished_at) WHERE key IS NOT NULL;

-- Cancelled in SQL before it was collected, while its shard is in another database: a cancelled task is made of it there.
ALTER TABLE duetime.inbox ADD COLUMN cancelled_at timestamptz;
