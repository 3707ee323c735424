-- Deletes the oldest audit entries. Every node runs this; SKIP LOCKED keeps the nodes from waiting for one another.
-- $1 how long an entry is kept; $2 the limit of entries. Returns the number of deleted entries.
WITH gone AS (
    DELETE FROM duetime.audit
     WHERE id = ANY (ARRAY(
               SELECT id FROM duetime.audit WHERE at < now() - $1::interval ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING id
)
SELECT count(*) AS deeds FROM gone
