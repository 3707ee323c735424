-- Tells the other nodes of rows that were written behind the horizon, or of queues in which a task has an outcome. Sent on its own, after
-- the commit of what it tells of: a NOTIFY inside an insert takes a global lock at commit and halves the rate of inserts.
-- $1 the channel and $2 the text of each notification (pairwise).
SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) AS told (channel, payload)
