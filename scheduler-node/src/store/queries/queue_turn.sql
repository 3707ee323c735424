-- Notes in a database that is not the queues' home that a queue's policy has changed. From here on only a node that
-- knows the new policy claims tasks of the queue.
-- Guard: waits for the claims in flight, as queue_put.sql does. A newer revision stays.
-- As queue_delete.sql does, it forgets the turns of queues that do not exist, by the copy of the queues here.
-- $1 queue; $2 the revision of its policy; $3 the revision at which its rules for submissions last
-- changed; $4 when its `settle` last became `result`, or NULL. By the clock of
-- this database it may have been five seconds earlier: an attempt with consumers that report must not count as before.
-- $5 the number of revisions for which such a turn is remembered; $6 the limit of turns that the statement forgets.
WITH waited AS MATERIALIZED (
    SELECT duetime.await_claims() AS done
), outdated AS (
    DELETE FROM duetime.queue_turn AS q
     USING (SELECT t.queue
              FROM duetime.queue_turn AS t
             WHERE t.revision < $2 - $5::bigint AND t.queue <> $1
               AND NOT EXISTS (SELECT FROM duetime.queue AS k WHERE k.name = t.queue)
               AND (SELECT w.done FROM waited AS w)
             ORDER BY t.revision
             LIMIT $6) AS found
     WHERE q.queue = found.queue AND q.revision < $2 - $5::bigint
)
INSERT INTO duetime.queue_turn AS q (queue, revision, placed, reports_since)
SELECT $1::text, $2::bigint, $3::bigint, $4::timestamptz - interval '5 s' FROM waited WHERE waited.done
    ON CONFLICT (queue) DO UPDATE
   SET revision = greatest(q.revision, excluded.revision), placed = greatest(q.placed, excluded.placed),
       reports_since = greatest(q.reports_since, excluded.reports_since)
