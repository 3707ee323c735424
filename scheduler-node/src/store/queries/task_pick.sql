-- Starts tasks that wait for room, so many of each priority, and lets the lanes of a priority take turns. A lane is
-- the tasks of one partition key on one shard (`-`: the tasks without one). The walk goes from lane to lane, from
-- where the previous walk ended. It ends after one round, or earlier once it has found enough lanes. Each lane then
-- gives its oldest tasks, as many as the other lanes.
-- In an ordered queue ($10) a lane with a key gives only its head. The head is the task that was started and is not
-- finished, or otherwise the first by (due_at, id). While that task is in flight or waits for its retry, the lane
-- gives nothing.
-- A claim may make rows `ready` some seconds before they are due. The statement starts a task at most $16 ahead of its
-- due time, which is the usual lead of a claim. Tasks that were started earlier would count towards the queue's limit
-- and use up its rate while they wait for their due times, and then all leave at once.
-- Guard: as in task_claim.sql, and still `ready`; the statement skips rows that another statement locks, and starts
-- the tasks behind them, except in a lane that gives only its head. A node runs one pick of a queue at a time, and the
-- fence keeps other nodes out. So a decision from counts that were read before this statement still holds. The index
-- task_in_order refuses a second started task of an ordered lane whatever happens. The statement starts nothing when
-- the queue has turned since revision $12 (task_claim.sql).
-- $1 queue; $2 shards and $3 epochs presented (pairwise, by shard); $4 the look-again time; $5 priorities; $6 the
-- number of tasks of each; $7 and $8 where each walk begins: the position in $2 (from 1), and the lane after which it
-- starts there (pairwise); $9 the limit of steps; $10 ordered; $11 counted; $12 the revision of the queues that the
-- claiming node knows.
-- $13 tasks that the database refuses to start: the statement skips them, and no task of an ordered lane overtakes
-- them. $14 the only tasks to start (NULL: any). With an empty list (`{}`) the statement starts none, and
-- `candidates` holds the tasks that it would start.
-- $15 the end of the window in which the statement has to begin: later it starts none. After an unknown outcome its
-- node waits for the window and the statement timeout, then counts again (doubt.rs).
-- $16 how far ahead of its due time a task is started; $17 the due time before which no task is ready (NULL: any may
-- be). The statement passes index entries before it without a look at their rows, or not at all in the lane `-`.
-- Returns the tasks, or one row without a task. Each row says how many fences were held, the database's time, and
-- whether the queue has turned since $12; `ends`: where each priority's walk ended, as "priority shard lane"; `cut`:
-- the priorities whose walks ended before they had come round; `comes_due`: of the lanes whose first task is due
-- later, the earliest due time.
WITH RECURSIVE fence AS MATERIALIZED (
    SELECT s.id, s.epoch
      FROM duetime.shard AS s
      JOIN unnest($2::int[], $3::bigint[]) AS mine (id, epoch) ON s.id = mine.id AND s.epoch = mine.epoch
     ORDER BY s.id
       FOR SHARE OF s
), turned AS MATERIALIZED (
    SELECT q.queue FROM duetime.queue_turn AS q WHERE q.queue = $1 AND q.revision > $12
), walk (priority, wanted, first, after, place, lane, due_at, moves, step, found, head, gives) AS (
    SELECT b.priority, b.wanted, b.place, b.lane COLLATE "C", b.place, b.lane COLLATE "C", NULL::timestamptz, 0, 0, 0, NULL::uuid, false
      FROM unnest($5::smallint[], $6::int[], $7::int[], $8::text[]) AS b (priority, wanted, place, lane)
     WHERE NOT EXISTS (SELECT FROM turned)
    UNION ALL
    SELECT w.priority, w.wanted, w.first, w.after, next.place, next.lane, gives.due_at, next.moves, w.step + 1,
           w.found + CASE WHEN gives.due_at <= statement_timestamp() + $16 THEN 1 ELSE 0 END, head.id,
           coalesce(gives.due_at <= statement_timestamp() + $16, false)
      FROM walk AS w
     CROSS JOIN LATERAL (                                           -- the next lane of this shard, else the next shard
           SELECT at.place, at.moves, oldest.lane, oldest.due_at
             FROM (SELECT CASE WHEN w.lane IS NULL THEN w.place % cardinality($2::int[]) + 1 ELSE w.place END AS place,
                          CASE WHEN w.lane IS NULL THEN w.moves + 1 ELSE w.moves END AS moves,
                          coalesce(nullif(w.lane, ''), '-') AS after,                      -- `-` is the first lane
                          CASE WHEN w.lane <> '' THEN 'infinity' ELSE coalesce($17, '-infinity') - interval '1 us' END AS due) AS at
             LEFT JOIN LATERAL (
                  SELECT coalesce('=' || t.partition_key, '-') COLLATE "C" AS lane, t.due_at
                    FROM duetime.task AS t
                   WHERE t.queue = $1 AND t.priority = w.priority AND t.shard = ($2::int[])[at.place] AND t.state = 'ready'
                     AND (coalesce('=' || t.partition_key, '-') COLLATE "C", t.due_at) > (at.after, at.due)
                     AND t.due_at >= coalesce($17, '-infinity')
                   ORDER BY coalesce('=' || t.partition_key, '-') COLLATE "C", t.due_at, t.id
                   LIMIT 1) AS oldest ON true
           OFFSET 0) AS next                                        -- evaluates it once, not at each use
      LEFT JOIN LATERAL (
           SELECT h.id, h.state, h.priority, h.shard, h.due_at
             FROM ((SELECT id, state, priority, shard, due_at, 0 AS rank
                      FROM duetime.task
                     WHERE $10 AND next.lane <> '-' AND partition_key = substr(next.lane, 2) COLLATE "default" AND queue = $1 AND in_order)
                   UNION ALL
                   (SELECT id, state, priority, shard, due_at, 1
                      FROM duetime.task
                     WHERE $10 AND next.lane <> '-' AND partition_key = substr(next.lane, 2) COLLATE "default" AND queue = $1
                       AND state <> 'waiting'
                     ORDER BY partition_key, queue, due_at, id
                     LIMIT 1)) AS h
            ORDER BY h.rank
            LIMIT 1) AS head ON true
     CROSS JOIN LATERAL (
           SELECT CASE WHEN NOT $10 OR next.lane = '-' THEN next.due_at   -- of the first task that the lane may give
                       WHEN head.state = 'ready' AND head.priority = w.priority AND head.shard = ($2::int[])[next.place]
                       THEN head.due_at END AS due_at) AS gives
     WHERE w.found < w.wanted AND w.step < $9
       AND next.moves <= cardinality($2::int[])
       AND (next.moves < cardinality($2::int[]) OR next.lane <= w.after)     -- ends after one round
), lane AS MATERIALIZED (
    SELECT priority, wanted, ($2::int[])[place] AS shard, lane, head, step, count(*) OVER (PARTITION BY priority) AS lanes
      FROM walk
     WHERE gives
), candidate AS MATERIALIZED (
    SELECT l.priority, l.wanted, l.shard, l.lane, c.id,
           row_number() OVER (PARTITION BY l.priority ORDER BY c.turn, l.step) AS nth
      FROM lane AS l
     CROSS JOIN LATERAL (
           SELECT l.head AS id, 1::bigint AS turn WHERE l.head IS NOT NULL AND l.head <> ALL($13::uuid[])
            UNION ALL
           SELECT id, row_number() OVER ()
             FROM (SELECT t.id
                     FROM duetime.task AS t
                    WHERE l.head IS NULL
                      AND t.queue = $1 AND t.priority = l.priority AND t.shard = l.shard AND t.state = 'ready'
                      AND coalesce('=' || t.partition_key, '-') COLLATE "C" = l.lane
                      AND t.due_at BETWEEN coalesce($17, '-infinity') AND statement_timestamp() + $16
                      AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp())
                      AND t.id <> ALL($13::uuid[])
                    ORDER BY t.due_at, t.id
                    LIMIT (l.wanted + l.lanes - 1) / l.lanes
                      FOR NO KEY UPDATE SKIP LOCKED) AS oldest) AS c   -- the neighbours of a locked row take its turn
), locked AS MATERIALIZED (
    SELECT t.id
      FROM candidate AS c
      JOIN duetime.task AS t ON t.id = c.id
     WHERE c.nth <= c.wanted AND ($14::uuid[] IS NULL OR c.id = ANY($14::uuid[]))
       AND t.state::text = 'ready'                                   -- cast: see task_claim
       AND t.shard = ANY(ARRAY(SELECT f.id FROM fence AS f))
       AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp())
       AND t.due_at <= statement_timestamp() + $16
       AND statement_timestamp() <= $15                     -- began within its window
       AND clock_timestamp() - interval '5 seconds' <= $15  -- ended within statement_timeout after it (connect.rs)
       FOR NO KEY UPDATE OF t SKIP LOCKED
), claimed AS (
    UPDATE duetime.task AS t
       SET state = 'dispatching',
           attempt = t.attempt + 1,
           claim_epoch = (SELECT f.epoch FROM fence AS f WHERE f.id = t.shard),
           claimed_at = clock_timestamp(),
           wake_at = clock_timestamp() + $4,
           in_order = CASE WHEN $10 AND t.partition_key IS NOT NULL THEN true ELSE t.in_order END,
           counted = CASE WHEN $11 THEN true ELSE t.counted END
      FROM locked AS p
     WHERE t.id = p.id
    RETURNING t.id, 'taken' AS fate, t.attempt, t.attempts_base, t.queue, t.due_at, t.priority, t.payload, t.content_type,
              t.headers, t.key, t.partition_key, t.version, t.max_attempts, t.timeout_ms, t.redeliveries, t.envelope
), ended AS (
    SELECT DISTINCT ON (priority) priority, shard, lane
      FROM (SELECT priority, shard, lane, 1 AS rank, nth AS step FROM candidate WHERE nth = wanted
             UNION ALL
            SELECT priority, ($2::int[])[place], lane, 2, step FROM walk WHERE step > 0 AND lane IS NOT NULL) AS seen
     ORDER BY priority, rank, step DESC
)
SELECT (SELECT count(*) FROM fence) AS fences, clock_timestamp() AS now, EXISTS (SELECT FROM turned) AS turned, c.*,
       ARRAY(SELECT w.priority FROM walk AS w WHERE w.step = $9) AS cut,
       (SELECT min(w.due_at) FROM walk AS w WHERE NOT w.gives) AS comes_due,
       ARRAY(SELECT e.priority || ' ' || e.shard || ' ' || e.lane FROM ended AS e) AS ends,
       CASE WHEN cardinality($14::uuid[]) = 0 THEN ARRAY(SELECT c.id FROM candidate AS c WHERE c.nth <= c.wanted) END AS candidates
  FROM (SELECT 1) AS always
  LEFT JOIN claimed AS c ON true
