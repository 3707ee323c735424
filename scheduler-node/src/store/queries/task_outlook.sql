-- Counts the tasks that come due in each of $3 spans of $2, one after another from $1 on.
-- Walks task_wake shard by shard and reads at most $4 rows of a span, however many there are. A `looked` of $4 means
-- that there may be more. The statement also reads rows that wake for another reason, and does not count them: for a
-- deadline, a rescue, or the check of a task that waits for others. Where there are many, the count is a low one.
-- $5 shards to leave out, because their place is another database.
SELECT span.nth, count(*) FILTER (WHERE found.state = 'scheduled') AS tasks, count(found.state) AS looked
  FROM generate_series(0, $3::int - 1) AS span (nth)
  LEFT JOIN LATERAL (
       SELECT near.state
         FROM duetime.shard AS s
        CROSS JOIN LATERAL (
              SELECT t.state
                FROM duetime.task AS t
               WHERE t.shard = s.id AND t.state <> 'ready'
                 AND t.wake_at >= $1::timestamptz + span.nth * $2::interval AND t.wake_at < $1::timestamptz + (span.nth + 1) * $2::interval
               ORDER BY t.wake_at
               LIMIT $4) AS near
        WHERE s.id <> ALL($5::int[])
        LIMIT $4) AS found ON true
 GROUP BY span.nth
 ORDER BY span.nth
