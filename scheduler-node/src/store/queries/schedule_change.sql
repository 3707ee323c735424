-- Sets what a schedule says, and where it stands.
-- Guard: it is as it was read (revision $8). A turn or another change in between makes this do nothing.
-- $1 name, $2 rules, $3 payload, $4 next fire time, $5 since, $6 paused at, $7 wake at. Returns it; no row: it is not as it was.
UPDATE duetime.schedule
   SET revision = nextval('duetime.schedule_revision'), rules = $2, payload = $3, next_at = $4, since = $5, paused_at = $6,
       wake_at = $7, updated_at = clock_timestamp()
 WHERE name = $1 AND revision = $8
RETURNING name, revision, rules, payload, next_at, since, paused_at, buffered_at, last_fire_at, last_task, created_at, updated_at
