-- Tells the other nodes that rows of some shards were written behind the horizon, or that tasks of some queues have an outcome. Sent on its
-- own, after the commit of what it tells of: a NOTIFY inside an insert takes a global lock at commit and halves the rate of inserts.
-- $1 the channel, $2 shard numbers or names of queues, comma separated.
SELECT pg_notify($1, $2)
