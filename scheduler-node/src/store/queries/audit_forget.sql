-- Deletes what was done longest ago. Every node does this; none waits for another.
-- $1 how long it is kept, $2 most. Returns how many there were.
WITH gone AS (
    DELETE FROM duetime.audit
     WHERE id = ANY (ARRAY(
               SELECT id FROM duetime.audit WHERE at < now() - $1::interval ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING id
)
SELECT count(*) AS deeds FROM gone
