-- Names schedules of the queue $1, at most $2, by the index schedule_queue. The payloads stay unread.
SELECT found.name
  FROM (SELECT s.name FROM duetime.schedule AS s WHERE s.rules ->> 'queue' = $1 LIMIT $2) AS found
 ORDER BY found.name
