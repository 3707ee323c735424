-- Reads every queue, with the revision of all queues; one row without a name: there is none.
SELECT m.queue_revision AS revision, q.name, q.policy, q.paused
  FROM duetime.meta AS m
  LEFT JOIN duetime.queue AS q ON true
