-- The gate to the broker, together with task_submit.sql for tasks that are due at once. Flips due tasks to
-- `dispatching`, counts the attempt and returns the tasks to publish.
-- Guard: the statement locks the fence rows FOR SHARE where the presented epoch is still in force, and touches tasks
-- of these shards only. An acquire waits for this statement, and a claim after the acquire finds no fence. Tasks that
-- were cancelled, moved or finished meanwhile do not come back. Tasks of closed lanes ($6) become `ready` instead,
-- and their attempt is not counted.
-- The statement skips a row that another transaction locks, so an application's open transaction delays its own task
-- and no other. It also skips tasks of a queue that has turned since revision $7, which means that its policy has
-- changed. So a policy is in force for every task accepted after its change was answered.
-- No lock is needed for that. The change waited for the claims in flight (duetime.await_claims), and the snapshot of
-- a later claim has it.
-- The ids drive the plan, and no condition names the shard of a row, because its id implies the shard. With such a
-- condition the planner walks the shards' whole index ranges whenever its statistics are old, which is 100 times
-- slower. For the same reason the state is compared in a CASE: from this the planner cannot prove the predicate of
-- task_wake. A cast to text, which statements that run less often use, does the same and costs more for each row.
-- A cluster may have thousands of queues in $6. A comparison with an array that is a parameter is a linear search, so
-- the statement looks each queue up in a subquery, which PostgreSQL hashes.
-- $1 ids, $2 their shards and $3 the epochs presented (pairwise); $4 how far ahead of its due time a task is claimed;
-- $5 the look-again time, after which a node looks at a claimed task again; $6 closed queues; $7 the revision of the
-- queues that the claiming node knows.
-- Returns the tasks with their fate. A task is `taken`, `held` (now `ready`) or `passed`: still to be woken, with its
-- state and wake time. One row, the only one with a time, has no task: the number of fences held, the database's time,
-- and whether any queue has turned since $7.
WITH presented AS MATERIALIZED (
    SELECT a.id, a.shard, a.epoch FROM unnest($1::uuid[], $2::int[], $3::bigint[]) AS a (id, shard, epoch)
), turned AS MATERIALIZED (
    SELECT q.queue FROM duetime.queue_turn AS q WHERE q.revision > $7
), fence AS MATERIALIZED (
    SELECT s.id
      FROM duetime.shard AS s
      JOIN (SELECT DISTINCT shard, epoch FROM presented) AS mine ON s.id = mine.shard AND s.epoch = mine.epoch
     ORDER BY s.id
       FOR SHARE OF s
), asked AS MATERIALIZED (
    SELECT p.id, p.epoch FROM presented AS p WHERE p.shard = ANY(ARRAY(SELECT f.id FROM fence AS f))
), free AS MATERIALIZED (
    SELECT t.id, a.epoch, t.queue IN (SELECT unnest($6::text[])) AS held    -- once a row, in a hash table
      FROM asked AS a
      JOIN duetime.task AS t ON t.id = a.id
     WHERE CASE WHEN t.state = 'scheduled' THEN true ELSE false END     -- keeps the planner off task_wake
       AND t.wake_at <= clock_timestamp() + $4                      -- else moved to a later time meanwhile
       AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp())
       AND t.queue <> ALL(ARRAY(SELECT q.queue FROM turned AS q))
       FOR NO KEY UPDATE OF t SKIP LOCKED
), claimed AS (
    UPDATE duetime.task AS t
       SET state = CASE WHEN a.held THEN 'ready'::duetime.task_state ELSE 'dispatching' END,
           attempt = CASE WHEN a.held THEN t.attempt ELSE t.attempt + 1 END,
           claim_epoch = CASE WHEN a.held THEN t.claim_epoch ELSE a.epoch END,
           claimed_at = CASE WHEN a.held THEN t.claimed_at ELSE clock_timestamp() END,
           wake_at = CASE WHEN a.held THEN t.wake_at ELSE clock_timestamp() + $5 END
      FROM free AS a
     WHERE t.id = a.id
    RETURNING t.id, CASE WHEN t.state = 'ready' THEN 'held' ELSE 'taken' END AS fate, t.attempt, t.attempts_base,
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
SELECT (SELECT count(*) FROM fence), clock_timestamp(), EXISTS (SELECT FROM turned),
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
