-- Creates the note of the realm that uses this database: the keys in etcd that coordinate its nodes. A cluster with
-- another etcd, or another prefix there, is refused while the nodes of this one run.
-- Locks: none that another session waits for; a new table only.

CREATE TABLE duetime.realm (
    single   boolean PRIMARY KEY DEFAULT true CHECK (single),
    realm    uuid NOT NULL,
    -- Each running node of the realm refreshes it every few seconds. After a longer silence another may take over.
    seen_at  timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
