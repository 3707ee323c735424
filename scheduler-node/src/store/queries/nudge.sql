-- Tells the other nodes that rows of these shards were written behind the horizon. Sent on its own, after their commit:
-- a NOTIFY inside an insert takes a global lock at commit and halves the rate of inserts.
-- $1 shard numbers, comma separated.
SELECT pg_notify('duetime_nudge', $1)
