-- Counts the schedules, those whose `since` lies further ahead of the clock than $1, and what waits too long as
-- schedule_wake.sql has it: schedules whose look is further ahead than $2, and fire times further than $3.
SELECT count(*) AS schedules, count(*) FILTER (WHERE since > clock_timestamp() + $1::interval) AS ahead,
       count(*) FILTER (WHERE wake_at > statement_timestamp() + $2::interval
                          AND (wake_at > coalesce(next_at, '-infinity') OR buffered_at IS NOT NULL AND paused_at IS NULL))
       + (SELECT count(*) FROM duetime.fire WHERE wake_at > statement_timestamp() + $3::interval) AS put_off
  FROM duetime.schedule
