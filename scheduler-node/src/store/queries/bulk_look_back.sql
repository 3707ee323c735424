-- Walks as bulk_look.sql does, but from the last task to the first. A shift to later times uses it, because such a
-- walk leaves the moved tasks behind.
-- $2 and $3 the due time and id before which the walk goes on; $4 the earliest due time. There is no $12. `bytes` is
-- 0: no reader of whole tasks walks this way.
SELECT seen.id, seen.state, seen.due_at, seen.expires_at, seen.key_taken, seen.drop_on, seen.hit, seen.nth, 0::bigint AS bytes
  FROM (SELECT looked_at.*, row_number() OVER (ORDER BY due_at DESC, id DESC) AS nth
          FROM (SELECT id, state::text AS state, due_at, expires_at, false AS key_taken, NULL::date AS drop_on,
                       coalesce(shard <> ALL($11::int[]) AND ($5::text IS NULL OR state::text = $5) AND ($6::text IS NULL OR partition_key = $6)
                           AND ($7::text IS NULL OR key = $7) AND ($8::text IS NULL OR strpos(history -> -1 ->> 'error', $8) > 0), false) AS hit
                  FROM duetime.task
                 WHERE queue = $1 AND (due_at, id) < ($2::timestamptz, $3::uuid) AND due_at >= $4::timestamptz
                 ORDER BY due_at DESC, id DESC
                 LIMIT $9) AS looked_at) AS seen
 WHERE seen.hit OR seen.nth = $9
 ORDER BY seen.due_at DESC, seen.id DESC
 LIMIT $10
