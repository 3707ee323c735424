-- What waits in the inbox, oldest first: rows for the shards of this node, and any that nobody has collected for a while.
-- A row whose database is not there is left out, so that it does not stand in the way of the others.
-- Bounded in bytes before anything is unpacked: rows are added up by what they take up in the table, and a request that is too long, in the
-- table or as text, comes back as NULL.
-- Guard: none is needed. A row that is read twice is moved once (task_collect, task_collect_keyed).
-- $1 this node's shards, $2 shards whose database is there, $3 how long a row is left to its owner, $4 at the most so many, $5 rows to leave
-- out, $6 bytes of the table at the most (the first row comes in any case), $7 the longest request, $8 whether requests are asked for.
WITH head AS MATERIALIZED (
    SELECT i.id, i.submitted_at, i.leaving_at IS NOT NULL AS leaving, pg_column_size(i.request) AS stored
      FROM duetime.inbox AS i
     WHERE i.error IS NULL
       AND i.shard = ANY($2::int[])
       AND (i.shard = ANY($1::int[]) OR i.submitted_at < clock_timestamp() - $3::interval)
       AND i.id <> ALL($5::uuid[])
     ORDER BY i.submitted_at
     LIMIT $4
), added AS (
    SELECT h.*, sum(h.stored) OVER (ORDER BY h.submitted_at, h.id) - h.stored AS before FROM head AS h
)
SELECT a.id, a.submitted_at, a.leaving,
       CASE WHEN $8 AND a.stored <= $7
            THEN (SELECT CASE WHEN octet_length(r.text) <= $7 THEN r.text END
                    FROM (SELECT i.request::text AS text FROM duetime.inbox AS i WHERE i.id = a.id OFFSET 0) AS r)
       END AS request
  FROM added AS a
 WHERE a.before < $6
 ORDER BY a.submitted_at, a.id
