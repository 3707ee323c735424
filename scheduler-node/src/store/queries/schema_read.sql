-- Reads the schema version of this database, the number of shards of its cluster, and those that this database had at
-- first. NULL version: it has no schema.
-- `is_identified`: the schema has an id (identity_read.sql). One before 15 has none, and its version is to be read all
-- the same.
-- `is_unreleased`: a version before the first release made the schema. Its first migration had another name, which no
-- later migration may have.
-- `has_copies`: there are queues, and none was ever put or made here, so they are copies of the first database's.
SELECT (SELECT max(version) FROM duetime.migration WHERE success) AS version,
       EXISTS (SELECT FROM duetime.migration WHERE version = 1 AND description = 'create schema') AS is_unreleased,
       m.queue_revision = 0 AND EXISTS (SELECT FROM duetime.queue) AS has_copies,
       to_regclass('duetime.identity') IS NOT NULL AS is_identified,
       m.serves, m.cluster_id, m.shard_count, m.first_shard, m.last_shard
  FROM (SELECT 1) AS always
  LEFT JOIN duetime.meta AS m ON true
