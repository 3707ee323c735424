-- Reads the waiting rows of the inbox, oldest first: rows for the shards of this node, and rows that no owner has
-- collected for a while.
-- The statement leaves out a row whose database is unreachable, or does not take the tasks of its shard, as in the last
-- part of a move. Such a row would stand in the way of the others.
-- The read is bounded in bytes before any request is unpacked. The bound adds up the rows by their size in the table.
-- A request that is too long, in the table or as text, comes back as NULL.
-- `is_last`: the rows reach the bound with this one, so others may wait behind it.
-- `leaving`: the row is on its way into another database, or was cancelled while its shard was in another one.
-- `rules_changed`: with the first row, the queues whose rules for submissions have changed since revision $10 (see
-- queue_turn.sql). Every change that was answered before a row was committed is among them. `rules_revision`: the
-- latest revision of these.
-- A comparison with an array that is a parameter is a linear search. By the CASE a row is compared with the few shards
-- of this node first; the planner would begin with all that can be reached. Hash tables cost more than they save below
-- some hundred rows.
-- Guard: none is needed. A row that is read twice is moved once (task_collect.sql, task_collect_keyed.sql).
-- $1 this node's shards; $2 the shards whose database is reachable and takes tasks; $3 how long a row is left to its
-- owner; $4 the limit of rows; $5 ids to leave out; $6 the limit of bytes in the table (the first row comes in any
-- case); $7 the length of the longest request; $8 whether the caller needs the requests; $9 the moment of a submission
-- before which rows are not looked at; $10 the revision of the queues that the node knows.
WITH head AS MATERIALIZED (
    SELECT i.id, i.submitted_at, i.leaving_at IS NOT NULL OR i.cancelled_at IS NOT NULL AS leaving, pg_column_size(i.request) AS stored
      FROM duetime.inbox AS i
     WHERE i.error IS NULL AND i.submitted_at >= $9
       AND CASE WHEN i.shard = ANY($1::int[]) OR i.submitted_at < clock_timestamp() - $3::interval
                THEN i.shard = ANY($2::int[]) ELSE false END
       AND i.id <> ALL($5::uuid[])
     ORDER BY i.submitted_at
     LIMIT $4
), rules_changed AS MATERIALIZED (
    SELECT array_agg(q.queue) AS queues, max(q.placed) AS placed FROM duetime.queue_turn AS q WHERE q.revision > $10 AND q.placed > $10
), added AS (
    SELECT h.*, sum(h.stored) OVER (ORDER BY h.submitted_at, h.id) - h.stored AS before FROM head AS h
)
SELECT a.id, a.submitted_at, a.leaving, a.before + a.stored >= $6 AS is_last,
       CASE WHEN a.before = 0 THEN (SELECT t.queues FROM rules_changed AS t) END AS rules_changed,
       CASE WHEN a.before = 0 THEN (SELECT t.placed FROM rules_changed AS t) END AS rules_revision,
       CASE WHEN $8 AND a.stored <= $7
            THEN (SELECT CASE WHEN octet_length(r.text) <= $7 THEN r.text END
                    FROM (SELECT i.request::text AS text FROM duetime.inbox AS i WHERE i.id = a.id OFFSET 0) AS r)
       END AS request
  FROM added AS a
 WHERE a.before < $6
 ORDER BY a.submitted_at, a.id
