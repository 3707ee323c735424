-- Tells the other nodes of rows that were written with a wake time before the horizon, or of queues in which a task
-- has an outcome. The node sends it on its own, after the commit of those rows: a NOTIFY inside an insert takes a
-- global lock at commit and halves the rate of inserts.
-- $1 the channel and $2 the text of each notification (pairwise).
SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) AS told (channel, payload)
