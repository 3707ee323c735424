-- A page of what was done, newest first. Looks at no more than $8 rows, whatever the filter: the row at which the looking ended comes back
-- too, as `looked_up_to`, and the page ends there.
-- $1 who, $2 what, $3 target, each NULL for any; $4 not before; $5, $6 only before this moment and id; $7 most. `hit`: the filter applies.
SELECT id, at, who, who_id, what, target, address, status, detail, request_id, node, hit, nth = $8 AS looked_up_to
  FROM (SELECT *, row_number() OVER (ORDER BY at DESC, id DESC) AS nth,
               ($1::text IS NULL OR who = $1) AND ($2::text IS NULL OR what = $2) AND ($3::text IS NULL OR target = $3) AS hit
          FROM (SELECT *
                  FROM duetime.audit
                 WHERE at >= $4 AND (at, id) < ($5, $6)
                 ORDER BY at DESC, id DESC
                 LIMIT $8) AS looked_at) AS seen
 WHERE hit OR nth = $8
 ORDER BY at DESC, id DESC
 LIMIT $7
