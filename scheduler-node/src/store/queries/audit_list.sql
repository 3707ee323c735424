-- A page of what was done, newest first.
-- $1 who, $2 what, $3 target, each NULL for any; $4 not before; $5, $6 only before this moment and id; $7 most.
SELECT id, at, who, what, target, address, status, detail, request_id, node
  FROM duetime.audit
 WHERE at >= $4 AND (at, id) < ($5, $6)
   AND ($1::text IS NULL OR who = $1) AND ($2::text IS NULL OR what = $2) AND ($3::text IS NULL OR target = $3)
 ORDER BY at DESC, id DESC
 LIMIT $7
