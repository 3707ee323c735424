-- Lists the queues that have tasks waiting for room, by hopping through task_ready from name to name. The tasks may
-- be left over from a shard that has moved; lane_read.sql reads the owned shards only.
WITH RECURSIVE hop AS (
    (SELECT queue FROM duetime.task WHERE state = 'ready' ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT t.queue FROM duetime.task AS t WHERE t.state = 'ready' AND t.queue > hop.queue ORDER BY t.queue LIMIT 1)
      FROM hop
     WHERE hop.queue IS NOT NULL
)
SELECT queue FROM hop WHERE queue IS NOT NULL
