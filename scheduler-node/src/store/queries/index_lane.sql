-- Builds the index of the other tasks with a partition key, which finds the head of an ordered lane (task_pick.sql). A
-- task that waits for others is no head, and thousands of them may have earlier due times.
-- Lock: as index_waiting.sql.
CREATE INDEX CONCURRENTLY task_lane ON duetime.task (partition_key, queue, due_at, id) WHERE partition_key IS NOT NULL AND state <> 'waiting'
