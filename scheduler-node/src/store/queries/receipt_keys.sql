-- The keys of the cluster's receipts, the newest first, and whether every node has read it by now: nodes read them every 10 s.
SELECT key, made_at <= clock_timestamp() - interval '1 minute' AS is_known FROM duetime.receipt_key ORDER BY id DESC
