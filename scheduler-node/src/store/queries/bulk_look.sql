-- Finds the next unfinished tasks of one queue for a bulk action, in the order of (due_at, id).
-- Walks task_queue_due and reads at most $9 rows, whatever the filter. The row at which it reaches that limit comes
-- back too.
-- The walk must not meet a task again that the action has moved. $12 is the due time to which the action moves tasks.
-- A task with that due time has been moved already; if $12 is now or earlier, so has every task that is due.
-- NULL: the action moves no task ahead of the walk. Where $12 is not later than now, a task that was claimed
-- since $13 counts as moved too, because it may have failed and be due again later. $13 is when the walk began.
-- $1 queue; $2 and $3 the due time and id after which the walk goes on; $4 the due time before which it ends;
-- $5 state, $6 partition key, $7 key, $8 text in the last error (each NULL: any); $10 the limit of rows to return;
-- $11 shards whose rows are no hits, because their place is another database.
-- `hit`: the row matches the filter; a column that is NULL does not match. `bytes`: of a hit, the approximate size
-- of the whole task. To measure a compressed history, PostgreSQL decompresses it: 500 long ones take longer than a
-- statement may. Of those with more than 8 KiB stored, the size is the largest that they can have. pglz spends 25 bits
-- on 273 bytes at least, so it shrinks a text 88 times at most; lz4 spends a byte on 255.
SELECT seen.id, seen.state, seen.due_at, seen.expires_at, seen.key_taken, seen.drop_on, seen.hit, seen.nth,
       CASE WHEN seen.hit THEN (seen.other_bytes + coalesce(CASE
           WHEN pg_column_compression(seen.history) IS NULL THEN pg_column_size(seen.history)
           WHEN pg_column_size(seen.history) <= 8192 THEN octet_length(seen.history::text)
           ELSE pg_column_size(seen.history)::bigint * CASE pg_column_compression(seen.history) WHEN 'pglz' THEN 88 ELSE 255 END
       END, 0))::bigint END AS bytes
  FROM (SELECT looked_at.*, row_number() OVER (ORDER BY due_at, id) AS nth
          FROM (SELECT id, state::text AS state, due_at, expires_at, false AS key_taken, NULL::date AS drop_on,
                       octet_length(payload) AS other_bytes, history,
                       coalesce(shard <> ALL($11::int[]) AND ($5::text IS NULL OR state::text = $5) AND ($6::text IS NULL OR partition_key = $6)
                           AND ($7::text IS NULL OR key = $7) AND ($8::text IS NULL OR strpos(history -> -1 ->> 'error', $8) > 0)
                           AND ($12::timestamptz IS NULL OR (due_at <> $12 AND ($12 > now() OR due_at > now())))
                           AND ($13::timestamptz IS NULL OR $12 > now() OR claimed_at IS NULL OR claimed_at < $13), false) AS hit
                  FROM duetime.task
                 WHERE queue = $1 AND (due_at, id) > ($2::timestamptz, $3::uuid) AND due_at < $4::timestamptz
                 ORDER BY due_at, id
                 LIMIT $9) AS looked_at) AS seen
 WHERE seen.hit OR seen.nth = $9
 ORDER BY seen.due_at, seen.id
 LIMIT $10
