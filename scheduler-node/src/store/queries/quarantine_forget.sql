-- Deletes messages that are too old, and the oldest ones beyond the limit of kept rows. Every node runs this;
-- SKIP LOCKED keeps the nodes from waiting for one another.
-- $1 how long a message is kept; $2 how many of the newest are kept; $3 the limit of deleted rows.
-- Returns the number of deleted messages.
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
