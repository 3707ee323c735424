-- Has what waits too long looked at now: schedules and decided fire times whose `wake_at` a clock that was ahead has
-- put off. A schedule rightly waits for its next fire time, or for a bounded back-off. One with a buffered fire time
-- waits for the last task, and not for its next fire time.
-- Guard: the statement skips rows that another transaction locks. They are found again later.
-- $1 the longest time until a look at a schedule; $2 the same for a fire time; $3 the limit of rows of each kind.
-- Returns the number of rows.
WITH late AS MATERIALIZED (
    SELECT name FROM duetime.schedule
     WHERE wake_at > statement_timestamp() + $1
       AND (wake_at > coalesce(next_at, '-infinity') OR buffered_at IS NOT NULL AND paused_at IS NULL)
     LIMIT $3 FOR UPDATE SKIP LOCKED
), looked AS (
    UPDATE duetime.schedule AS s SET wake_at = clock_timestamp() FROM late WHERE s.name = late.name RETURNING s.name
), held AS MATERIALIZED (
    SELECT id FROM duetime.fire WHERE wake_at > statement_timestamp() + $2 LIMIT $3 FOR UPDATE SKIP LOCKED
), freed AS (
    UPDATE duetime.fire AS f SET wake_at = clock_timestamp() FROM held WHERE f.id = held.id RETURNING f.id
)
SELECT (SELECT count(*) FROM looked) + (SELECT count(*) FROM freed) AS woken
