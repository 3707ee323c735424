-- Reads which history of the data this server continues: `initdb` mints the system identifier, and each promotion of
-- a standby begins the next timeline. The timeline is the one to which the server writes now: that of the last
-- checkpoint lags behind a promotion. `flushed` is the end of what it has made durable. Not for a standby. Some managed
-- servers refuse these functions.
SELECT s.system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint AS timeline,
       (pg_current_wal_flush_lsn() - '0/0')::bigint AS flushed,
       has_function_privilege('pg_catalog.pg_read_file(text)', 'EXECUTE') AS may_read_files
  FROM pg_control_system() AS s
