-- Reads for what the server waits in the statement of this session's node that it began first, among those that take
-- longer than the server's own limit (5 s). Only the end of a transaction may: it waits for a standby or the disk
-- without a limit. A session that waits for its client does not count: the client may be cut off from it.
-- No row: the server has no such statement, so the node waits in vain.
SELECT COALESCE(wait_event, 'a processor') AS waits_for
  FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = current_setting('application_name')
   AND state = 'active' AND wait_event_type IS DISTINCT FROM 'Client' AND pid <> pg_backend_pid() AND query_start < clock_timestamp() - interval '5 seconds'
 ORDER BY query_start
 LIMIT 1
