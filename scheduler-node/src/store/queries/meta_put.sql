-- Notes which shards this database has at first ($2 to $3; NULL: none), their number in all ($1), and its cluster ($4),
-- with a fence for each shard. Later migrations change nothing: the fences say which shards have moved.
-- One statement: a node that waits for this migration never sees shards without fences.
WITH fixed AS (
    INSERT INTO duetime.meta (shard_count, first_shard, last_shard, cluster_id) VALUES ($1, $2, $3, $4)
    ON CONFLICT DO NOTHING
    RETURNING first_shard, last_shard
)
INSERT INTO duetime.shard (id) SELECT generate_series(first_shard, last_shard) FROM fixed
ON CONFLICT DO NOTHING
