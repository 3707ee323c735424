-- Reads the transactions that a waiting `duetime migrate` waits for, the oldest first: the process, its application,
-- the transaction as pg_locks names it (none between transactions), and the seconds since it began. PostgreSQL hides
-- these seconds from a role that may not see the session's details. A build of indexes has the same application name,
-- but waits for old snapshots (virtualxid), which are in no migration's way.
SELECT b.pid, COALESCE(b.application_name, '') AS application,
       (SELECT max(l.virtualtransaction) FROM pg_locks AS l
         WHERE l.pid = b.pid AND l.granted AND l.virtualxid = l.virtualtransaction) AS transaction,
       EXTRACT(EPOCH FROM clock_timestamp() - b.xact_start)::BIGINT AS age_s
  FROM pg_stat_activity AS b
 WHERE b.pid IN (SELECT unnest(pg_blocking_pids(w.pid))
                   FROM pg_stat_activity AS w
                  WHERE w.datname = current_database() AND w.wait_event_type = 'Lock' AND w.wait_event <> 'virtualxid'
                    AND w.application_name = current_setting('application_name'))
 ORDER BY age_s DESC NULLS LAST, b.pid
