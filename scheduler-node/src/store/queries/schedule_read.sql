-- Reads at most $3 schedules after the name $2, by name, of the queues $4, without their payloads; or the one named $1,
-- with its payload. $4 names, or starts of names and `*`; NULL: all.
SELECT name, revision, rules, CASE WHEN $1::text IS NULL THEN ''::bytea ELSE payload END AS payload, next_at, since, paused_at,
       buffered_at, last_fire_at, last_task, created_at, updated_at
  FROM duetime.schedule AS s
 WHERE CASE WHEN $1::text IS NULL THEN name > coalesce($2::text, '') ELSE name = $1 END
   AND ($4::text[] IS NULL
        OR EXISTS (SELECT FROM unnest($4::text[]) AS p (pattern)
                    WHERE CASE WHEN right(p.pattern, 1) = '*'
                               THEN starts_with(s.rules ->> 'queue', left(p.pattern, -1))
                               ELSE s.rules ->> 'queue' = p.pattern END))
 ORDER BY name
 LIMIT $3
