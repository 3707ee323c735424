-- How far behind the oldest claimable task of these shards is, in seconds; 0 when nothing is overdue.
-- Only what waits for its moment counts: deadlines and rescues have their own times.
-- $1 shards.
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - t.wake_at)), 0)::float8 AS overdue_s
  FROM unnest($1::int[]) AS s (id)
 CROSS JOIN LATERAL (
       SELECT wake_at FROM duetime.task
        WHERE shard = s.id AND state <> 'ready' AND wake_at <= clock_timestamp() AND state = 'scheduled'
        ORDER BY wake_at
        LIMIT 1) AS t
