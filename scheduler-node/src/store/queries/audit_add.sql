-- Records what callers did. An entry that exists stays as it is, so a node can send a batch again when its outcome is
-- unknown.
-- It first runs without the clause for entries that exist. If there is one, it fails and changes nothing, and runs
-- again as it stands here (store/conflict.rs).
-- $1 ids; $2 the age of each entry in ms, from which this database's clock gives its time; $3 who acted; $4 the
-- actions; $5 targets; $6 addresses; $7 statuses; $8 details; $9 request ids; $10 the node; $11 token ids.
INSERT INTO duetime.audit (id, at, who, who_id, what, target, address, status, detail, request_id, node)
SELECT f.id, now() - f.ago_ms * interval '1 ms', f.who, f.who_id, f.what, f.target, f.address, f.status, f.detail, f.request_id, $10
  FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::int[], $8::text[], $9::text[], $11::bigint[])
    AS f (id, ago_ms, who, what, target, address, status, detail, request_id, who_id)
    ON CONFLICT (id) DO NOTHING
