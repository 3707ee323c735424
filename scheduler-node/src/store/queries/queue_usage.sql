-- Counts the unfinished tasks of some queues, one slice at a time. Reads the index task_queue_due alone.
-- Guard: none. Tasks that are added, finish or move between two slices may be missed or counted twice.
-- $1 queues, in the order of the walk; $2 and $3 the due time and id after which the slice begins in the first of
-- them; $4 the limit of rows in a slice; $5 shards whose tasks are not counted, because their place is another
-- database (the id names the shard, so the index alone is enough); $6 the due time at which the slice begins in the
-- queues after the first.
-- Returns the number of tasks, their bytes (here 0), where the slice ends (the position of its queue in $1 (from 1),
-- due time and id; NULLs: there are no more tasks), and the earliest due time in the slice.
WITH slice AS MATERIALIZED (
    SELECT named.nth, walked.due_at, walked.id
      FROM unnest($1::text[]) WITH ORDINALITY AS named (queue, nth)
     CROSS JOIN LATERAL (
           SELECT t.due_at, t.id
             FROM duetime.task AS t
            WHERE t.queue = named.queue
              AND (t.due_at, t.id) > (CASE WHEN named.nth = 1 THEN $2::timestamptz ELSE $6::timestamptz END,
                                      CASE WHEN named.nth = 1 THEN $3::uuid ELSE '00000000-0000-0000-0000-000000000000' END)
            ORDER BY t.due_at, t.id
            LIMIT $4::bigint) AS walked
     ORDER BY named.nth
     LIMIT $4::bigint
)
SELECT whole.tasks, whole.bytes, last.nth, last.due_at, last.id, (SELECT min(due_at) FROM slice) AS oldest
  FROM (SELECT count(*) FILTER (WHERE duetime.shard_in(id) <> ALL($5::int[])) AS tasks, 0::bigint AS bytes FROM slice) AS whole
  LEFT JOIN (SELECT nth, due_at, id FROM slice OFFSET $4::bigint - 1 LIMIT 1) AS last ON true
