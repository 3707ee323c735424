-- Gives each database an id of its own, so that one database under two names of the configuration is refused.
-- Locks: duetime.meta, ACCESS EXCLUSIVE, while its one row gets the id. For that moment wait submissions in SQL, and
-- whatever reads or changes queues and tokens. The table is not written anew: a transaction with an older snapshot
-- would find it empty, and could submit nothing.

ALTER TABLE duetime.meta ADD COLUMN database_id uuid;
UPDATE duetime.meta SET database_id = gen_random_uuid();
ALTER TABLE duetime.meta
    ALTER COLUMN database_id SET DEFAULT gen_random_uuid(),
    ALTER COLUMN database_id SET NOT NULL;
