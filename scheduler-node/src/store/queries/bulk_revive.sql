-- Gives dead tasks new attempts: task_revive.sql for many.
-- Guard: as there. Of tasks with the same key the newest version comes first, and then the others are out of date. A row or a key that somebody
-- holds is passed over: see bulk_cancel.sql.
-- $1 days on which they may be dropped, $2 ids, pairwise. Returns those that live again, with the moment they wake.
SELECT t.id, t.wake_at
  FROM (SELECT a.drop_on, a.id
          FROM unnest($1::date[], $2::uuid[]) AS asked (drop_on, id)
          JOIN duetime.archive AS a ON a.drop_on = asked.drop_on AND a.id = asked.id
         WHERE a.state::text = 'dead'     -- as text: see task_claim
         ORDER BY a.queue, a.partition_key, a.key, a.version DESC, a.id DESC
        OFFSET 0) AS dead                                                -- keeps the order before the function is called
 CROSS JOIN LATERAL duetime.task_revive(dead.drop_on, dead.id, false) AS t
