-- Gives a dead task new attempts: moves it back from the archive, due now, in one statement.
-- Guard: in the function duetime.task_revive: dead, on the shard on which its queue places such a task now, and no
-- newer task has its key (else a unique violation of task_key_version). A change of the placement that commits at the
-- same moment may be missed, and so may one that this database has not copied yet. The attempt goes on counting from
-- where it was, so that no message id is ever used twice; the budget begins anew there. An expiry that has passed would
-- end the task at once, so the function takes it away.
-- $1 id. Returns the row as it is now; no row: the guard did not hold.
WITH found AS MATERIALIZED (
    SELECT a.drop_on
      FROM (SELECT to_date(right(c.relname, 8), 'YYYYMMDD') AS drop_on
              FROM pg_inherits AS i
              JOIN pg_class AS c ON c.oid = i.inhrelid
             WHERE i.inhparent = 'duetime.archive'::regclass AND NOT i.inhdetachpending) AS day
     CROSS JOIN LATERAL (SELECT drop_on FROM duetime.archive WHERE drop_on = day.drop_on AND id = $1 LIMIT 1) AS a
     LIMIT 1
)
SELECT t.id, t.queue, t.state::text AS state, t.wake_at, t.due_at, t.expires_at, t.priority, t.attempt,
          t.max_attempts, t.payload, t.content_type, t.headers, t.key, t.version, t.partition_key, t.delivered_at, t.progress, t.worker,
          t.history, t.created_at, NULL::timestamptz AS finished_at, NULL::text AS result, NULL::bigint AS status_code, NULL::text AS status_msg,
          t.stopping
  FROM found AS f
 CROSS JOIN LATERAL duetime.task_revive(f.drop_on, $1, true) AS t
