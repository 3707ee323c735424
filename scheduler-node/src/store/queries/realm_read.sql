-- Finds the realm that uses this database, unless its nodes have been silent.
-- $1 the silence after which another realm may take over.
SELECT realm FROM duetime.realm WHERE seen_at >= clock_timestamp() - $1::interval
