-- Reads the cluster's receipt keys, the newest first. `is_known`: the key is a minute old, so every node has read it,
-- because nodes read the keys every 10 s.
SELECT key, made_at <= clock_timestamp() - interval '1 minute' AS is_known FROM duetime.receipt_key ORDER BY id DESC
