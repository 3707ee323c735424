-- Reads whether this server takes writes. A server in recovery is a standby, or restores a backup. A node begins each
-- session with settings; a pooler between them may drop these.
SELECT pg_is_in_recovery() AS is_standby, current_setting('transaction_read_only')::bool AS is_read_only,
       current_setting('plan_cache_mode') = 'force_generic_plan' AND current_setting('statement_timeout') = '5s'
           AS keeps_settings
