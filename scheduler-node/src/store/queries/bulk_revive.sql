-- Gives dead tasks new attempts: task_revive.sql for a batch.
-- Guard: as in task_revive.sql. Of tasks with the same key the newest version comes first, which puts the others out
-- of date. The statement skips a row or a key that another transaction locks, as bulk_cancel.sql does.
-- $1 the days on which the archive may drop the tasks; $2 their ids (pairwise).
-- Returns the revived tasks, with the time at which each wakes.
SELECT t.id, t.wake_at
  FROM (SELECT a.drop_on, a.id
          FROM unnest($1::date[], $2::uuid[]) AS asked (drop_on, id)
          JOIN duetime.archive AS a ON a.drop_on = asked.drop_on AND a.id = asked.id
         WHERE a.state::text = 'dead'     -- cast: see task_claim
         ORDER BY a.queue, a.partition_key, a.key, a.version DESC, a.id DESC
        OFFSET 0) AS dead                                                -- sorts before it calls the function
 CROSS JOIN LATERAL duetime.task_revive(dead.drop_on, dead.id, false) AS t
