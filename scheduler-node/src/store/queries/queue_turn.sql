-- Notes in a database that is not the queues' home that a queue's policy has changed. From here on only a node that
-- knows the new policy claims tasks of the queue.
-- Guard: waits for the claims in flight, as queue_put.sql does. A newer revision stays.
-- $1 queue; $2 the revision of its policy; $3 the revision at which its rules for submissions last
-- changed; $4 when its `settle` last became `result`, or NULL. By the clock of
-- this database it may have been five seconds earlier: an attempt with consumers that report must not count as before.
WITH waited AS MATERIALIZED (
    SELECT duetime.await_claims() AS done
)
INSERT INTO duetime.queue_turn AS q (queue, revision, placed, reports_since)
SELECT $1::text, $2::bigint, $3::bigint, $4::timestamptz - interval '5 s' FROM waited WHERE waited.done
    ON CONFLICT (queue) DO UPDATE
   SET revision = greatest(q.revision, excluded.revision), placed = greatest(q.placed, excluded.placed),
       reports_since = greatest(q.reports_since, excluded.reports_since)
