-- Every queue, with the revision of them all; one row without a name when there is none.
SELECT m.queue_revision AS revision, q.name, q.policy, q.paused, q.created_at, q.updated_at
  FROM duetime.meta AS m
  LEFT JOIN duetime.queue AS q ON true
