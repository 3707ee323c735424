-- Reads the transactions that a waiting `duetime migrate` waits for, the oldest first: the process, its application,
-- and the seconds since the transaction began. Of those that this role may not see, only the process is known.
SELECT b.pid, COALESCE(b.application_name, '') AS application,
       COALESCE(EXTRACT(EPOCH FROM clock_timestamp() - b.xact_start), 0)::BIGINT AS age_s
  FROM pg_stat_activity AS b
 WHERE b.pid IN (SELECT unnest(pg_blocking_pids(w.pid))
                   FROM pg_stat_activity AS w
                  WHERE w.datname = current_database() AND w.wait_event_type = 'Lock'
                    AND w.application_name = current_setting('application_name'))
 ORDER BY age_s DESC, b.pid
