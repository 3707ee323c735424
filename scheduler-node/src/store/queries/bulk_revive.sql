-- Gives dead tasks new attempts: task_revive.sql for many.
-- Guard: as there, dead; and of tasks with the same key and version one at most, and none where another that is not finished has
-- them. A row that somebody holds is passed over: see bulk_cancel.sql.
-- $1 days on which they may be dropped, $2 ids, pairwise. Returns those that live again, with the moment they wake.
WITH free AS MATERIALIZED (
    SELECT a.drop_on, a.id, a.queue, a.key, a.partition_key, a.version
      FROM unnest($1::date[], $2::uuid[]) AS asked (drop_on, id)
      JOIN duetime.archive AS a ON a.drop_on = asked.drop_on AND a.id = asked.id
     WHERE a.state::text = 'dead'     -- as text: see task_claim
       FOR UPDATE OF a SKIP LOCKED
), first AS MATERIALIZED (
    SELECT DISTINCT ON (queue, coalesce('=' || key, id::text), coalesce(partition_key, ''), version) drop_on, id
      FROM free
     WHERE NOT EXISTS (SELECT
                         FROM duetime.task AS t
                        WHERE t.queue = free.queue AND t.key = free.key AND t.version = free.version
                          AND coalesce(t.partition_key, '') = coalesce(free.partition_key, ''))
     ORDER BY queue, coalesce('=' || key, id::text), coalesce(partition_key, ''), version, id DESC
), gone AS (
    DELETE FROM duetime.archive AS a
     USING first
     WHERE a.drop_on = first.drop_on AND a.id = first.id AND a.state::text = 'dead'
    RETURNING a.*
)
INSERT INTO duetime.task AS t (
    id, shard, queue, state, wake_at, due_at, expires_at, priority, attempt, attempts_base, max_attempts, timeout_ms, retry,
    payload, content_type, headers, key, partition_key, version, claim_epoch, claimed_at, history, created_at, envelope)
SELECT id, shard, queue, 'scheduled', now(), now(), CASE WHEN expires_at > now() THEN expires_at END, priority, attempt, attempt,
       max_attempts, timeout_ms, retry, payload, content_type, headers, key, partition_key, version, claim_epoch, claimed_at,
       history, created_at, envelope
  FROM gone
RETURNING t.id, t.wake_at
