-- One page of queues: at most $2 after the name $1, by name. $3 names queues, or starts of names and `*`; NULL: all.
-- Names are compared as bytes, so that every node and every database agrees on their order.
SELECT name, policy, paused, created_at, updated_at
  FROM duetime.queue AS q
 WHERE name COLLATE "C" > $1
   AND ($3::text[] IS NULL
        OR EXISTS (SELECT FROM unnest($3::text[]) AS p (pattern)
                    WHERE CASE WHEN right(p.pattern, 1) = '*'
                               THEN starts_with(q.name, left(p.pattern, -1))
                               ELSE q.name = p.pattern END))
 ORDER BY name COLLATE "C"
 LIMIT $2
