-- Counts as queue_usage.sql does, with the bytes of payloads, headers and envelopes. It reads each row, but no
-- payload that is stored out of line. A column of bytes in the index would avoid these reads, but every claim would
-- cost 6 % more.
-- $1 to $6 and the result: see queue_usage.sql.
WITH slice AS MATERIALIZED (
    SELECT named.nth, walked.due_at, walked.id, walked.bytes
      FROM unnest($1::text[]) WITH ORDINALITY AS named (queue, nth)
     CROSS JOIN LATERAL (
           SELECT t.due_at, t.id,
                  octet_length(t.payload) + coalesce(octet_length(t.headers::text), 0) + coalesce(octet_length(t.envelope::text), 0) AS bytes
             FROM duetime.task AS t
            WHERE t.queue = named.queue
              AND (t.due_at, t.id) > (CASE WHEN named.nth = 1 THEN $2::timestamptz ELSE $6::timestamptz END,
                                      CASE WHEN named.nth = 1 THEN $3::uuid ELSE '00000000-0000-0000-0000-000000000000' END)
            ORDER BY t.due_at, t.id
            LIMIT $4::bigint) AS walked
     ORDER BY named.nth
     LIMIT $4::bigint
)
SELECT whole.tasks, whole.bytes, last.nth, last.due_at, last.id, (SELECT min(due_at) FROM slice) AS oldest
  FROM (SELECT count(*) AS tasks, coalesce(sum(bytes), 0)::bigint AS bytes FROM slice WHERE duetime.shard_in(id) <> ALL($5::int[])) AS whole
  LEFT JOIN (SELECT nth, due_at, id FROM slice OFFSET $4::bigint - 1 LIMIT 1) AS last ON true
