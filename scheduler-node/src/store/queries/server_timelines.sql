-- Reads the file in which the server keeps its former timelines, a line each: the number, the position at which it was
-- left, and the reason. $1: the present timeline, which must not be the first. Only for a role that may read files.
SELECT pg_read_file('pg_wal/' || upper(lpad(to_hex($1::bigint), 8, '0')) || '.history') AS lines
