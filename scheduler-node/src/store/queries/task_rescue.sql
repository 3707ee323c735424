-- Looks again at tasks whose publish has no known outcome, to publish them again in place: same attempt, same message id.
-- Guard: the fence as in task_claim, and still `dispatching`: whatever has been confirmed, reported or rejected meanwhile does not
-- come back. Never makes a row cancellable again. A row that another transaction holds is passed over.
-- $1 ids with $2 their shards and $3 the epochs presented (pairwise), $4 look again after. Returns at least one row, as task_claim does.
WITH presented AS MATERIALIZED (
    SELECT a.id, a.shard, a.epoch FROM unnest($1::uuid[], $2::int[], $3::bigint[]) AS a (id, shard, epoch)
), fence AS MATERIALIZED (
    SELECT s.id
      FROM duetime.shard AS s
      JOIN (SELECT DISTINCT shard, epoch FROM presented) AS mine ON s.id = mine.shard AND s.epoch = mine.epoch
     ORDER BY s.id
       FOR SHARE OF s
), asked AS MATERIALIZED (
    SELECT p.id, p.epoch FROM presented AS p WHERE p.shard = ANY(ARRAY(SELECT f.id FROM fence AS f))
), free AS MATERIALIZED (
    SELECT t.id, a.epoch
      FROM asked AS a
      JOIN duetime.task AS t ON t.id = a.id
     WHERE t.state::text = 'dispatching'     -- as text, here and in its kin: the planner must not prove that task_wake would do
       FOR NO KEY UPDATE OF t SKIP LOCKED
), claimed AS (
    UPDATE duetime.task AS t
       SET claim_epoch = a.epoch,
           claimed_at = clock_timestamp(),
           wake_at = clock_timestamp() + $4,
           redeliveries = t.redeliveries + 1
      FROM free AS a
     WHERE t.id = a.id
    RETURNING t.id, 'taken' AS fate, t.state::text AS state, t.wake_at, t.claim_epoch,
              t.attempt, t.attempts_base, t.queue, t.due_at, t.priority, t.payload, t.content_type,
              t.headers, t.key, t.partition_key, t.version, t.max_attempts, t.timeout_ms, t.redeliveries, t.claimed_at, t.envelope
), passed AS (
    SELECT t.id, 'passed', t.state::text, t.wake_at, t.claim_epoch
      FROM asked AS a
      JOIN duetime.task AS t ON t.id = a.id
     WHERE (SELECT count(*) FROM free) < (SELECT count(*) FROM asked)          -- else nothing is read a second time
       AND a.id NOT IN (SELECT f.id FROM free AS f)
       AND t.state::text <> 'ready'
       AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp() OR t.state::text <> 'scheduled')
)
SELECT (SELECT count(*) FROM fence) AS fences, clock_timestamp() AS now, false AS turned, c.*
  FROM (SELECT 1) AS always
  LEFT JOIN (
       SELECT * FROM claimed
        UNION ALL
       SELECT p.*, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM passed AS p) AS c ON true
