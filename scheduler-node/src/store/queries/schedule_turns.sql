-- Stores the new standings of many schedules and the fire times that owe a task, as schedule_turn.sql does for one.
-- Guard: each schedule still has the revision that was read, so each fire time is decided once.
-- The statement skips a schedule that another transaction locks. So it waits for none of them while it holds others,
-- and an application's open transaction delays its own schedule only.
-- $1 names; $2 the revisions that were read; $3 next fire times; $4 since; $5 paused at; $6 buffered; $7 wake at; $8
-- the last task and $9 its fire time, NULL where none is made (pairwise); $10 the tasks' ids; $11 their fire times; $12
-- whether each was buffered; $13 the place of its schedule in $1, from 1 on (pairwise); $14 how long the node that
-- decided has to make the tasks.
-- Returns in the order of $1 whether the schedule was `held`, by another transaction or because it is gone, and whether
-- it has `turned`. Neither: it has another revision.
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest(
        $1::text[], $2::bigint[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[],
        $7::timestamptz[], $8::uuid[], $9::timestamptz[]
    ) WITH ORDINALITY AS a (name, revision, next_at, since, paused_at, buffered_at, wake_at, last_task, last_fire_at, place)
), free AS MATERIALIZED (
    SELECT s.name FROM duetime.schedule AS s WHERE s.name = ANY ($1) ORDER BY s.name FOR NO KEY UPDATE SKIP LOCKED
), turned AS (
    UPDATE duetime.schedule AS s
       SET revision = nextval('duetime.schedule_revision'), next_at = a.next_at, since = a.since, paused_at = a.paused_at,
           buffered_at = a.buffered_at, wake_at = a.wake_at, last_task = coalesce(a.last_task, s.last_task),
           last_fire_at = coalesce(a.last_fire_at, s.last_fire_at)
      FROM asked AS a
     WHERE s.name = a.name AND s.revision = a.revision AND s.name = ANY(ARRAY(SELECT f.name FROM free AS f))
    RETURNING a.place, s.name, s.rules, s.payload
), decided AS (
    INSERT INTO duetime.fire (id, schedule, fire_at, buffered, rules, payload, wake_at)
    SELECT f.id, t.name, f.fire_at, f.buffered, t.rules, t.payload, clock_timestamp() + $14
      FROM unnest($10::uuid[], $11::timestamptz[], $12::boolean[], $13::bigint[]) AS f (id, fire_at, buffered, place)
      JOIN turned AS t ON t.place = f.place
)
SELECT f.name IS NULL AS held, t.place IS NOT NULL AS turned
  FROM asked AS a
  LEFT JOIN free AS f ON f.name = a.name
  LEFT JOIN turned AS t ON t.place = a.place
 ORDER BY a.place
