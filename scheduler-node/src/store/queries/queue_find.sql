-- Reads the queue named $1. No row: there is no such queue.
SELECT name, policy, paused, created_at, updated_at FROM duetime.queue WHERE name = $1
