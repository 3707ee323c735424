-- Which schema this database has and which shards it holds. NULL version: none.
SELECT (SELECT max(version) FROM duetime.migration WHERE success) AS version,
       m.shard_count, m.first_shard, m.last_shard
  FROM (SELECT 1) AS always
  LEFT JOIN duetime.meta AS m ON true
