-- Locks: ACCESS EXCLUSIVE on duetime.task for a moment (two columns without a rewrite), then SHARE while the indexes
-- are built. Writes wait for that long, some seconds a million tasks. Nodes of the previous version work on as
-- before.

-- `in_order`: set once by a start in the order of the queue. `counted`: set once by a start that counts towards the
-- queue's limit. Rows of other queues do not get into the two indexes on these columns.
ALTER TABLE duetime.task ADD COLUMN in_order boolean, ADD COLUMN counted boolean;

-- Tasks that wait for room: by queue, priority and shard, then by lane, each lane in the order in which its tasks
-- start. A lane is the tasks of one partition key; those without one are `-`. A pick hops from lane to lane, so that
-- they take turns.
DROP INDEX duetime.task_ready;
CREATE INDEX task_ready
    ON duetime.task (queue, priority, shard, (coalesce('=' || partition_key, '-') COLLATE "C"), due_at, id)
    WHERE state = 'ready';

-- The head of an ordered lane, started or not; and all tasks of a partition key.
DROP INDEX duetime.task_partition;
CREATE INDEX task_partition ON duetime.task (partition_key, queue, due_at, id) WHERE partition_key IS NOT NULL;

-- One task at a time: in an ordered queue, no second task of a partition key starts before the first has finished.
CREATE UNIQUE INDEX task_in_order ON duetime.task (partition_key, queue) WHERE in_order AND partition_key IS NOT NULL;

-- Tasks in flight that count towards a limit.
CREATE INDEX task_counted ON duetime.task (queue) WHERE counted AND state IN ('dispatching', 'delivered', 'running');
