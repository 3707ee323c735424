-- Reads the places of the shards, as far as this database tells them, with their revision. Both come from one
-- snapshot.
-- $1 the revision that is known, or NULL. If it is still the revision, one row comes back, without a shard. So it does
-- while the database has no shards.
-- `epoch`: of an arriving copy, that of its source.
SELECT m.revision, s.id, s.status::text AS status, CASE WHEN s.status = 'arriving' THEN s.move_epoch ELSE s.epoch END AS epoch
  FROM duetime.shard_map AS m
  LEFT JOIN duetime.shard AS s ON m.revision IS DISTINCT FROM $1::bigint
