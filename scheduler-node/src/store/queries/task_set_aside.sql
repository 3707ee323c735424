-- Sets a claimed task aside: the database refuses to write how its attempt ended, so no node may publish it again or
-- end it at its deadline. The task keeps its state and wakes at $3, the end of all times: no preload, takeover or
-- deadline finds it. A report of the attempt still ends it.
-- Guard: this attempt, and it has been handed over or may have been.
-- $1 id; $2 attempt; $3 the wake time.
UPDATE duetime.task AS t
   SET wake_at = $3
 WHERE t.id = $1 AND t.attempt = $2 AND t.state::text IN ('dispatching', 'delivered', 'running')  -- cast: see task_claim
