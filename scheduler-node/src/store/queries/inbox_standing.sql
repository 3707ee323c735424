-- Counts the rows that wait in the inbox, up to $1, and reads the age of the oldest in seconds.
-- $2 the moment of a submission before which rows do not count.
SELECT count(*) AS waiting,
       coalesce(extract(epoch FROM clock_timestamp() - min(w.submitted_at)), 0)::float8 AS oldest_s
  FROM (SELECT i.submitted_at FROM duetime.inbox AS i WHERE i.error IS NULL AND i.submitted_at >= $2 ORDER BY i.submitted_at LIMIT $1) AS w
