-- Postpones, on all nodes, the look at schedules that no node has decided for some time and that this one cannot
-- decide, the longest overdue first. They are those that schedule_due.sql passes over, and those that this node read
-- and could not decide.
-- Guard: the statement skips a schedule that another transaction locks. So it waits for none of them while it holds
-- others, and of two nodes at the same moment each postpones other schedules.
-- $1 how long they have been due at least; $2 the limit of schedules; $3 the revisions of schedules that this node
-- could not decide; $4 the `wake_at` before which schedules are not looked at; $5 the shards whose tasks this node
-- cannot learn of; $6 the delay; $7 the delay where there are as many as the limit.
WITH late AS MATERIALIZED (
    SELECT s.name
      FROM duetime.schedule AS s
     WHERE s.wake_at >= $4 AND s.wake_at <= statement_timestamp() - $1
       AND (s.revision = ANY ($3::bigint[])
            OR (duetime.shard_in(s.last_task) = ANY ($5::int[]) AND s.rules ->> 'overlap' IS DISTINCT FROM 'allow'
                AND (SELECT true FROM duetime.fire AS f WHERE f.id = s.last_task) IS NOT TRUE))
     ORDER BY s.wake_at
     LIMIT $2
       FOR NO KEY UPDATE OF s SKIP LOCKED
)
UPDATE duetime.schedule AS s
   SET wake_at = clock_timestamp() + CASE WHEN (SELECT count(*) FROM late) < $2 THEN $6::interval ELSE $7::interval END
  FROM late
 WHERE s.name = late.name
