-- Takes the presence lock of one start of a node, for as long as this session lives. The server ends the session when
-- the process ends, so the lock shows the other nodes whether it runs. The node runs it on the connection that
-- listens for nudges, which no statement of a task uses.
-- $1 the key of the lock.
SELECT pg_advisory_lock($1)
