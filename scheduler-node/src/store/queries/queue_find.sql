-- Reads the queue named $1, with the revision of all queues; a row without a name: there is no such queue.
SELECT m.queue_revision AS revision, q.name, q.policy, q.paused, q.created_at, q.updated_at
  FROM duetime.meta AS m
  LEFT JOIN duetime.queue AS q ON q.name = $1
