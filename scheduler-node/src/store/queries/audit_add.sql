-- Notes what was done. What is noted already stays as it is, so a batch whose outcome is unknown is written again.
-- $1 ids, $2 how long ago each was done, in ms: this database's clock says when that was; $3 who, $4 what, $5 targets,
-- $6 addresses, $7 statuses, $8 details, $9 request ids; $10 the node; $11 ids of tokens.
INSERT INTO duetime.audit (id, at, who, who_id, what, target, address, status, detail, request_id, node)
SELECT f.id, now() - f.ago_ms * interval '1 ms', f.who, f.who_id, f.what, f.target, f.address, f.status, f.detail, f.request_id, $10
  FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::int[], $8::text[], $9::text[], $11::bigint[])
    AS f (id, ago_ms, who, what, target, address, status, detail, request_id, who_id)
    ON CONFLICT (id) DO NOTHING
