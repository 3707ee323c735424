-- Reads at most $3 schedules after the name $2, by name; or the one named $1.
SELECT name, revision, rules, payload, next_at, since, paused_at, buffered_at, last_fire_at, last_task, created_at, updated_at
  FROM duetime.schedule
 WHERE CASE WHEN $1::text IS NULL THEN name > coalesce($2::text, '') ELSE name = $1 END
 ORDER BY name
 LIMIT $3
