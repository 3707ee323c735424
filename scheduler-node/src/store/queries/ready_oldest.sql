-- Finds the due time of a queue's oldest ready task in this database, or the database's time if it has none.
-- It walks task_queue_due, which passes the entries that an old transaction keeps about five times as quickly as
-- task_ready does: they lie in the order of their rows.
-- $1 queue; $2 the due time at which to begin (NULL: the head).
SELECT coalesce((SELECT due_at
                   FROM duetime.task
                  WHERE queue = $1 AND state = 'ready' AND due_at >= coalesce($2, '-infinity')
                  ORDER BY queue, due_at, id
                  LIMIT 1), statement_timestamp()) AS oldest
