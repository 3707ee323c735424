-- Finds the due time of a queue's oldest ready task, or the database's time if it has none.
-- It reads all shards, those of other nodes too: so it ends soon where another node has the tasks, and finds those of a
-- shard that is only stopped for now.
-- It walks task_queue_due, which passes the entries that an old transaction keeps some times as quickly as task_ready
-- does: they lie in the order of their rows. It passes no task that is due later than a claim makes one ready.
-- $1 queue; $2 the due time at which to begin (NULL: the head); $3 how far ahead of its due time a task may become
-- ready.
SELECT coalesce((SELECT due_at
                   FROM duetime.task
                  WHERE queue = $1 AND state = 'ready'
                    AND due_at BETWEEN coalesce($2, '-infinity') AND statement_timestamp() + $3
                  ORDER BY queue, due_at, id
                  LIMIT 1), statement_timestamp()) AS oldest
