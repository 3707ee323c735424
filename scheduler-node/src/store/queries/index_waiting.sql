-- Builds the index of tasks that wait for others, by partition key: a success finds its dependents by it
-- (task_release.sql). Beside task_lane it takes the place of task_partition.
-- Lock: SHARE UPDATE EXCLUSIVE on duetime.task, for which no reader or writer waits. It waits for every transaction
-- that is open when it begins and when it has read the table.
CREATE INDEX CONCURRENTLY task_waiting ON duetime.task (partition_key) WHERE partition_key IS NOT NULL AND state = 'waiting'
