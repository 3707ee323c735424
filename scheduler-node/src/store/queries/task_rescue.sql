-- Rescues tasks whose publish has no known outcome, so that the node publishes them again in place: same attempt,
-- same message id.
-- Guard: the fence as in task_claim.sql, and still `dispatching`. A task that was confirmed, reported or rejected
-- meanwhile does not come back. The statement never makes a row cancellable again, and skips a row that another
-- transaction locks.
-- $1 ids, $2 their shards and $3 the epochs presented (pairwise); $4 the look-again time.
-- Returns the rows that task_claim.sql returns.
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
     WHERE CASE WHEN t.state = 'dispatching' THEN true ELSE false END     -- CASE: see task_claim
       FOR NO KEY UPDATE OF t SKIP LOCKED
), claimed AS (
    UPDATE duetime.task AS t
       SET claim_epoch = a.epoch,
           claimed_at = clock_timestamp(),
           wake_at = clock_timestamp() + $4,
           redeliveries = t.redeliveries + 1
      FROM free AS a
     WHERE t.id = a.id
    RETURNING t.id, 'taken' AS fate, t.attempt, t.attempts_base,
              t.queue, t.due_at, t.priority, t.payload, t.content_type, t.headers, t.key, t.partition_key, t.version,
              t.max_attempts, t.timeout_ms, t.redeliveries, t.envelope
), passed AS (
    SELECT t.state::text, t.wake_at, t.claim_epoch, t.id, 'passed'
      FROM asked AS a
      JOIN duetime.task AS t ON t.id = a.id
     WHERE (SELECT count(*) FROM free) < (SELECT count(*) FROM asked)          -- only if a row was skipped
       AND a.id NOT IN (SELECT f.id FROM free AS f)
       AND t.state::text <> 'ready'
       AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp() OR t.state::text <> 'scheduled')
)
SELECT NULL::bigint AS fences, NULL::timestamptz AS now, NULL::boolean AS turned,
       NULL::text AS state, NULL::timestamptz AS wake_at, NULL::bigint AS claim_epoch, c.*
  FROM claimed AS c
 UNION ALL
SELECT NULL, NULL, NULL, p.*, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM passed AS p
 UNION ALL
SELECT (SELECT count(*) FROM fence), clock_timestamp(), false,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
