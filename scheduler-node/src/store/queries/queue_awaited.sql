-- Whether submissions in SQL or decided fire times of the queue $1 are about to be tasks, as far as the first $2 of all
-- show. Both tables are nearly empty while their tasks can be written.
SELECT EXISTS (SELECT
                 FROM (SELECT i.request ->> 'queue' AS queue FROM duetime.inbox AS i WHERE i.error IS NULL ORDER BY i.submitted_at LIMIT $2) AS submitted
                WHERE submitted.queue = $1)
       OR EXISTS (SELECT
                    FROM (SELECT f.rules ->> 'queue' AS queue FROM duetime.fire AS f ORDER BY f.wake_at LIMIT $2) AS decided
                   WHERE decided.queue = $1) AS awaited
