-- Lists the tasks that task_expire.sql would take. The caller searches them for the one row that the database
-- refuses. Returns their ids and expiries, in the order of the expiries.
-- $1 shards; $2 the limit of tasks; $3 ids to leave out; $4 the expiry before which tasks are not looked at.
SELECT id, expires_at
  FROM duetime.task
 WHERE expires_at >= $4 AND expires_at <= statement_timestamp()
   AND state IN ('waiting', 'scheduled', 'ready') AND shard = ANY($1::int[])
   AND id <> ALL($3::uuid[])
 ORDER BY expires_at
 LIMIT $2
