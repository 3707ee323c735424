-- Commits a note of no effect and reads its position in the log. When the answer is there, every commit that was
-- acknowledged before is as safe as this one: it lies before `at`, on this system and timeline.
SELECT (pg_logical_emit_message(true, 'duetime', '') - '0/0')::bigint AS at, s.system_identifier,
       ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint AS timeline
  FROM pg_control_system() AS s
