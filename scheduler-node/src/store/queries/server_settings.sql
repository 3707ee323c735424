-- Reads the settings of this server for which Duetime has a recommendation, in bytes and seconds. A node never runs it;
-- `duetime check` does. `commits_are_durable`: as this role's sessions have it. `lock_room`: the locks that the server
-- has room for. `archive_locks`: those of a statement that opens the whole archive, 0 without one.
-- `missing_indexes`: those of the names $1 that are no complete index of the schema. A schema above version $2 has
-- indexes of its own.
SELECT pg_size_bytes(current_setting('max_wal_size')) AS max_wal_bytes,
       pg_size_bytes(current_setting('min_wal_size')) AS min_wal_bytes,
       extract(epoch FROM current_setting('checkpoint_timeout')::interval)::bigint AS checkpoint_timeout_s,
       current_setting('checkpoint_completion_target')::float8 AS checkpoint_completion_target,
       pg_size_bytes(current_setting('shared_buffers')) AS shared_buffers_bytes,
       current_setting('fsync')::boolean AS fsync,
       current_setting('full_page_writes')::boolean AS full_page_writes,
       current_setting('synchronous_commit') <> 'off' AS commits_are_durable,
       current_setting('autovacuum')::boolean AS autovacuum,
       current_setting('max_locks_per_transaction')::bigint AS max_locks_per_transaction,
       current_setting('max_locks_per_transaction')::bigint
           * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint) AS lock_room,
       (SELECT count(*) + coalesce(sum((SELECT count(*) FROM pg_catalog.pg_index AS i WHERE i.indrelid = part.relid)), 0)::bigint
          FROM pg_partition_tree(to_regclass('duetime.archive')) AS part) AS archive_locks,
       current_setting('server_encoding') AS encoding,
       ARRAY(SELECT wanted.name
               FROM unnest($1::text[]) AS wanted (name)
              WHERE (SELECT max(version) FROM duetime.migration WHERE success) <= $2 AND NOT EXISTS (
                    SELECT FROM pg_catalog.pg_index AS i
                     WHERE i.indexrelid = to_regclass('duetime.' || wanted.name) AND i.indisvalid)) AS missing_indexes
