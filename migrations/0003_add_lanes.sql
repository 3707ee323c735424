-- Locks: ACCESS EXCLUSIVE on duetime.task for a moment (two columns without a rewrite), then SHARE while the indexes are built:
-- writes wait for that long, some seconds a million tasks. Nodes of the version before work on as they did.

-- Set once by a start that is in its queue's order, and by one that counts towards its queue's limit. No other queue's rows get into the
-- two indexes below.
ALTER TABLE duetime.task ADD COLUMN in_order boolean, ADD COLUMN counted boolean;

-- What waits for room: by queue, priority and shard, then by lane, the tasks of one partition key (those without one are `-`), each in
-- the order it will be taken. Who takes turns hops from lane to lane.
DROP INDEX duetime.task_ready;
CREATE INDEX task_ready
    ON duetime.task (queue, priority, shard, (coalesce('=' || partition_key, '-') COLLATE "C"), due_at, id)
    WHERE state = 'ready';

-- The head of an ordered lane, started or not; and all tasks of a partition key.
DROP INDEX duetime.task_partition;
CREATE INDEX task_partition ON duetime.task (partition_key, queue, due_at, id) WHERE partition_key IS NOT NULL;

-- One task at a time: of an ordered queue and partition key no second one is started before the first is finished.
CREATE UNIQUE INDEX task_in_order ON duetime.task (partition_key, queue) WHERE in_order AND partition_key IS NOT NULL;

-- What counts towards a limit.
CREATE INDEX task_counted ON duetime.task (queue) WHERE counted AND state IN ('dispatching', 'delivered', 'running');
