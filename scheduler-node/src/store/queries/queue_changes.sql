-- Reads the queues that were written or deleted after the revision $1, with the revision of all queues; one row
-- without a name: there was no change.
-- A name may come twice: deleted, and then written again. The database remembers deletions for $2 revisions. A node
-- that is further behind has to read all queues (`forgotten`).
SELECT m.queue_revision AS revision, m.queue_revision - $1 > $2 OR m.queue_revision < $1 AS forgotten, c.name, c.policy, c.paused
  FROM duetime.meta AS m
  LEFT JOIN (SELECT name, policy, paused FROM duetime.queue WHERE revision > $1
              UNION ALL
             SELECT g.name, NULL, NULL FROM duetime.queue_gone AS g WHERE g.revision > $1) AS c
    ON m.queue_revision - $1 BETWEEN 0 AND $2
 ORDER BY c.policy IS NOT NULL     -- deletions first
