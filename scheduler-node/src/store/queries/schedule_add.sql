-- Adds a schedule.
-- Guard: none is there with that name; else nothing is done.
-- $1 name, $2 rules, $3 payload, $4 next fire time, $5 since, $6 paused at, $7 wake at. Returns it; no row: one is there.
INSERT INTO duetime.schedule (name, rules, payload, next_at, since, paused_at, wake_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (name) DO NOTHING
RETURNING name, revision, rules, payload, next_at, since, paused_at, buffered_at, last_fire_at, last_task, created_at, updated_at
