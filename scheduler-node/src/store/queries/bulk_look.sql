-- Tasks of one queue that are not finished, for something that is done to many: the next ones in the order of (due_at, id).
-- Walks task_queue_due and looks at no more than $9 rows, whatever the filter; the last one looked at comes back too.
-- What is moved while it is walked must not be met again: $11 is where to. A row that is due then is there already, and where that is
-- now or earlier, so is every row that is due (NULL: what is done moves nothing ahead of the walk).
-- $1 queue, $2 and $3 after this due time and id, $4 before this due time, $5 state, $6 partition key, $7 key, $8 text in the last
-- error (NULL: any), $10 at most so many. `hit`: the filter applies; a NULL in a column is no hit. `bytes`: about how much there is to read of it.
SELECT seen.*
  FROM (SELECT looked_at.*, row_number() OVER (ORDER BY due_at, id) AS nth
          FROM (SELECT id, state::text AS state, due_at, expires_at, false AS key_taken, NULL::date AS drop_on,
                       (octet_length(payload) + coalesce(pg_column_size(history), 0))::bigint AS bytes,
                       coalesce(($5::text IS NULL OR state::text = $5) AND ($6::text IS NULL OR partition_key = $6)
                           AND ($7::text IS NULL OR key = $7) AND ($8::text IS NULL OR strpos(history -> -1 ->> 'error', $8) > 0)
                           AND ($11::timestamptz IS NULL OR (due_at <> $11 AND ($11 > now() OR due_at > now()))), false) AS hit
                  FROM duetime.task
                 WHERE queue = $1 AND (due_at, id) > ($2::timestamptz, $3::uuid) AND due_at < $4::timestamptz
                 ORDER BY due_at, id
                 LIMIT $9) AS looked_at) AS seen
 WHERE seen.hit OR seen.nth = $9
 ORDER BY seen.due_at, seen.id
 LIMIT $10
