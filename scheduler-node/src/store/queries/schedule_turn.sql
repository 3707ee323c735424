-- Writes what a look at a schedule decided: where it stands, and the fire times for which tasks are to be made. From here on they
-- will be, whatever becomes of the schedule and of whoever decided.
-- Guard: the schedule is as it was read (revision $2), so that each fire time is decided once.
-- $1 name, $3 next fire time, $4 since, $5 paused at, $6 buffered, $7 wake at, $8 the tasks' ids, $9 their fire times, $10 whether
-- each was buffered, $11 how long whoever decided has to make them. Returns the schedule; no row: it is not as it was.
WITH turned AS (
    UPDATE duetime.schedule
       SET revision = nextval('duetime.schedule_revision'), next_at = $3, since = $4, paused_at = $5, buffered_at = $6, wake_at = $7,
           last_task = coalesce(($8::uuid[])[cardinality($8)], last_task),
           last_fire_at = coalesce(($9::timestamptz[])[cardinality($9)], last_fire_at)
     WHERE name = $1 AND revision = $2
    RETURNING name, revision, rules, payload, next_at, since, paused_at, buffered_at, last_fire_at, last_task, created_at, updated_at
), decided AS (
    INSERT INTO duetime.fire (id, schedule, fire_at, buffered, rules, payload, wake_at)
    SELECT f.id, t.name, f.fire_at, f.buffered, t.rules, t.payload, clock_timestamp() + $11
      FROM turned AS t
     CROSS JOIN unnest($8, $9, $10::boolean[]) AS f (id, fire_at, buffered)
)
SELECT * FROM turned
