-- Reads the cluster to which the data of this server belongs. A node asks this also of a server that it does not use.
-- Fails where there is no Duetime schema. No row: no migration has finished.
SELECT cluster_id FROM duetime.meta
