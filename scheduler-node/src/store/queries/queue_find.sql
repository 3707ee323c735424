-- The queue named $1, with the revision of them all; a row without a name when there is none.
SELECT m.queue_revision AS revision, q.name, q.policy, q.paused, q.created_at, q.updated_at
  FROM duetime.meta AS m
  LEFT JOIN duetime.queue AS q ON q.name = $1
