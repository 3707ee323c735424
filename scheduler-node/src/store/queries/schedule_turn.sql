-- Stores a schedule's new standing and the fire times that owe a task. From here on these tasks will be made,
-- whatever becomes of the schedule and of the node that decided.
-- Guard: the schedule still has the revision $2, so each fire time is decided once.
-- $1 name; $3 next fire time; $4 since; $5 paused at; $6 buffered; $7 wake at; $8 the tasks' ids; $9 their fire
-- times; $10 whether each was buffered; $11 how long the node that decided has to make the tasks.
-- Returns the schedule; no row: it has another revision.
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
