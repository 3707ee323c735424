-- Waits for the transaction that holds a schedule. schedule_change.sql does not wait for it: it holds the table of the
-- fences, and claims queue up behind a change of a queue that waits for that table.
-- $1 name. The lock ends with the statement, so the schedule may be held again.
SELECT FROM duetime.schedule WHERE name = $1 FOR NO KEY UPDATE
