-- Looks for tasks of the queue $1 as queue_delete.sql does, but keeps no claim waiting, and measures the look.
-- Returns whether there are some, and the server's time for the look in milliseconds.
WITH looked AS MATERIALIZED (
    SELECT duetime.queue_has_tasks($1) AS has_tasks
)
SELECT has_tasks, (extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000)::bigint AS took_ms FROM looked
