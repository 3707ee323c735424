-- What a waiting task waits for, and how each of those stands; NULL: nothing with that key is known.
-- What has succeeded comes first.
-- $1 id. No row: it does not wait.
SELECT split_part(name, ' ', 1) AS queue, substr(name, strpos(name, ' ') + 1) AS key,
       CASE WHEN met THEN 'succeeded' ELSE duetime.standing_of(name, t.partition_key)::text END AS state
  FROM duetime.task AS t
 CROSS JOIN LATERAL (
       SELECT name, true AS met, place FROM unnest(t.depends_met) WITH ORDINALITY AS d (name, place)
       UNION ALL
       SELECT name, false, place FROM unnest(t.depends_on) WITH ORDINALITY AS d (name, place)) AS d
 WHERE t.id = $1 AND t.state = 'waiting'
 ORDER BY met DESC, place
