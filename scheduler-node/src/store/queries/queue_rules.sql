-- Reads the revision at which the rules of a queue for submissions last changed, its format among them, where that is
-- later than the one that a node knows. Every change that was answered before is here (queue_put.sql, queue_turn.sql).
-- $1 queue; $2 the revision of the queues that the node knows. No row: there is no such change.
SELECT q.placed FROM duetime.queue_turn AS q WHERE q.queue = $1 AND q.placed > $2
