-- Deletes messages that were kept for too long, and the oldest of those that are too many. Every node does this; none waits for another.
-- $1 how long a message is kept, $2 how many of the newest stay, $3 most at a time. Returns how many there were.
WITH gone AS (
    DELETE FROM duetime.quarantine
     WHERE id = ANY (ARRAY(
               SELECT id FROM duetime.quarantine
                WHERE id <= (SELECT max(id) FROM duetime.quarantine) - $2
                   OR received_at < clock_timestamp() - $1::interval
                ORDER BY id LIMIT $3 FOR UPDATE SKIP LOCKED))
    RETURNING id
)
SELECT count(*) AS messages FROM gone
