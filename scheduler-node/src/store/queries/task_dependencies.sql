-- What a waiting task waits for, and how each of those stands; NULL: nothing with that key is known.
-- $1 id. No row: it does not wait.
SELECT split_part(name, ' ', 1) AS queue, substr(name, strpos(name, ' ') + 1) AS key,
       duetime.standing_of(name, t.partition_key)::text AS state
  FROM duetime.task AS t
 CROSS JOIN LATERAL unnest(t.depends_on) WITH ORDINALITY AS d (name, place)
 WHERE t.id = $1 AND t.state = 'waiting'
 ORDER BY place
