-- Finds the due time of a queue's oldest ready task in these shards, or the database's time if it has none.
-- It walks task_queue_due, which passes the entries that an old transaction keeps some times as quickly as task_ready
-- does: they lie in the order of their rows. It passes no task of later than a claim makes one ready.
-- $1 queue; $2 the due time at which to begin (NULL: the head); $3 shards; $4 how far ahead of its due time a task may
-- become ready.
SELECT coalesce((SELECT due_at
                   FROM duetime.task
                  WHERE queue = $1 AND state = 'ready' AND shard = ANY($3::int[])
                    AND due_at BETWEEN coalesce($2, '-infinity') AND statement_timestamp() + $4
                  ORDER BY queue, due_at, id
                  LIMIT 1), statement_timestamp()) AS oldest
