-- Lists the dependencies of a waiting task and the state of each; NULL: no task with that key is known.
-- Dependencies that have succeeded come first.
-- $1 id. No row: the task does not wait.
SELECT split_part(name, ' ', 1) AS queue, substr(name, strpos(name, ' ') + 1) AS key,
       CASE WHEN met THEN 'succeeded' ELSE duetime.standing_of(name, t.partition_key)::text END AS state
  FROM duetime.task AS t
 CROSS JOIN LATERAL (
       SELECT name, true AS met, place FROM unnest(t.depends_met) WITH ORDINALITY AS d (name, place)
       UNION ALL
       SELECT name, false, place FROM unnest(t.depends_on) WITH ORDINALITY AS d (name, place)) AS d
 WHERE t.id = $1 AND t.state = 'waiting'
 ORDER BY met DESC, place
