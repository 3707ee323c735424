-- Reads the schema version of this database and the shards that it holds. NULL version: it has no schema.
SELECT (SELECT max(version) FROM duetime.migration WHERE success) AS version,
       m.shard_count, m.first_shard, m.last_shard
  FROM (SELECT 1) AS always
  LEFT JOIN duetime.meta AS m ON true
