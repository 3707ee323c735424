-- Gives each database an id of its own, so that one database under two names of the configuration is refused.
-- Locks: duetime.meta, ACCESS EXCLUSIVE, while its one row is written anew. For that moment wait
-- submissions in SQL, and whatever reads or changes queues and tokens.

ALTER TABLE duetime.meta ADD COLUMN database_id uuid NOT NULL DEFAULT gen_random_uuid();
