-- Reads whether each commit of this session waits for a standby, and whether one is there to wait for. The standbys
-- show to members of pg_monitor only (`may_see`).
SELECT current_setting('synchronous_standby_names') <> '' AS names_standbys,
       current_setting('synchronous_commit') NOT IN ('off', 'local') AS waits,
       pg_has_role('pg_read_all_stats', 'USAGE') AS may_see,
       EXISTS (SELECT FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')) AS has_standby
