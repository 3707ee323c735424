-- Waits for the transaction that holds a schedule. schedule_change.sql does not wait for it: it holds the table of the
-- fences, and claims queue up behind a change of a queue that waits for that table.
-- The commit waits for neither disk nor standby, because it writes nothing. Otherwise the schedule would stay locked
-- for that time, and of several changes each would find it held by another one that only waits.
-- $1 name. The lock ends with the statement, so the schedule may be held again.
SELECT set_config('synchronous_commit', 'off', true) AS waits_for FROM duetime.schedule WHERE name = $1 FOR NO KEY UPDATE
