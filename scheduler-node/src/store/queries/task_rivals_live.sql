-- Finds the newest live task with each of these keys: task_find_live.sql, for many keys. It tells of each task what
-- decides whether it answers for a new one with its key.
-- A shard that is in another database fails nothing: the other keys of the batch have their answers.
-- $1 queues, $2 partition keys, $3 keys and $4 the shards on which new tasks with them would be (pairwise; $2 NULL:
-- none; it may be empty); $5 shards to leave out, because their place is another database.
-- Returns a row for each key, with its place from 1 on. `state` NULL: no live task has the key; task_rivals.sql tells
-- whether a finished one answers for it. `is_here` false: the shard of the task, or without a task that of the key, is
-- in another database, so the rest of the row says nothing. Fence and tasks are read at one moment.
SELECT a.place, newest.state::text AS state, newest.version, newest.payload_bytes, newest.headers,
       EXISTS (SELECT FROM duetime.shard AS s WHERE s.id = coalesce(newest.shard, a.shard) AND s.status IN ('here', 'leaving')) AS is_here
  FROM unnest($1::text[], $2::text[], $3::text[], $4::int[]) WITH ORDINALITY AS a (queue, partition_key, key, shard, place)
  LEFT JOIN LATERAL (
       SELECT t.shard, t.state, t.version, octet_length(t.payload) AS payload_bytes, t.headers
         FROM duetime.task AS t
        WHERE t.queue = a.queue AND t.key = a.key AND coalesce(t.partition_key, '') = coalesce(a.partition_key, '')
          AND t.shard <> ALL($5::int[])
        ORDER BY t.version DESC
        LIMIT 1) AS newest ON true
