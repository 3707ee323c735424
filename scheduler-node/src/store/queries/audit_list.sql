-- One page of the audit, newest first. The statement reads at most $8 rows, whatever the filter. The row at which it
-- reaches that limit comes back too, as `looked_up_to`, and the page ends there.
-- $1 who acted, $2 the action, $3 the target (each NULL: any); $4 the earliest time; $5 and $6 the time and id before
-- which the page begins; $7 the limit of rows to return. `hit`: the row matches the filter.
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
