-- Takes tasks that waited for room in one lane, by priority and then by the time they have waited.
-- Guard: as in task_claim; rows another statement holds are passed over.
-- $1 queue, $2 shards and $3 epochs presented (pairwise), $4 at most so many, $5 look again after.
-- Returns at least one row, as task_claim does.
WITH fence AS MATERIALIZED (
    SELECT s.id, s.epoch
      FROM duetime.shard AS s
      JOIN unnest($2::int[], $3::bigint[]) AS mine (id, epoch) ON s.id = mine.id AND s.epoch = mine.epoch
     ORDER BY s.id
       FOR SHARE OF s
), picked AS MATERIALIZED (
    SELECT id
      FROM duetime.task
     WHERE queue = $1 AND state = 'ready' AND shard = ANY(ARRAY(SELECT f.id FROM fence AS f))
       AND (expires_at IS NULL OR expires_at > clock_timestamp())
     ORDER BY priority, wake_at
     LIMIT $4
       FOR NO KEY UPDATE SKIP LOCKED
), claimed AS (
    UPDATE duetime.task AS t
       SET state = 'dispatching',
           attempt = t.attempt + 1,
           claim_epoch = (SELECT f.epoch FROM fence AS f WHERE f.id = t.shard),
           claimed_at = clock_timestamp(),
           wake_at = clock_timestamp() + $5
      FROM picked AS p
     WHERE t.id = p.id
    RETURNING t.id, false AS held_back, t.attempt, t.attempts_base, t.queue, t.due_at, t.priority, t.payload, t.content_type,
              t.headers, t.key, t.partition_key, t.version, t.max_attempts, t.timeout_ms, t.redeliveries, t.claimed_at, t.envelope
)
SELECT (SELECT count(*) FROM fence) AS fences, clock_timestamp() AS now, c.*
  FROM (SELECT 1) AS always
  LEFT JOIN claimed AS c ON true
