-- Notes the turns of queues in the target of a move. The target may have joined the cluster after them. From the cut on
-- it has to refuse a claim that does not know them.
-- Guard: a newer turn stays. No claim is waited for: those of the shard come after the cut.
-- $1 queues; $2 the revisions of their policies; $3 the revisions at which their rules for submissions last changed;
-- $4 when their `settle` last became `result` (pairwise). Five seconds are taken off, as in queue_turn.sql.
INSERT INTO duetime.queue_turn AS q (queue, revision, placed, reports_since)
SELECT t.queue, t.revision, t.placed, t.reports_since - interval '5 s'
  FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::timestamptz[]) AS t (queue, revision, placed, reports_since)
 ORDER BY t.queue
    ON CONFLICT (queue) DO UPDATE
   SET revision = greatest(q.revision, excluded.revision), placed = greatest(q.placed, excluded.placed),
       reports_since = greatest(q.reports_since, excluded.reports_since)
 WHERE q.revision < excluded.revision OR q.placed < excluded.placed
