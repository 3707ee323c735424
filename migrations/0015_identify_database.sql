-- Gives each database an id of its own, so that one database under two names of the configuration is refused.
-- Locks: none that another session waits for; a new table only. A column of duetime.meta would need ACCESS EXCLUSIVE on
-- it, and each transaction that has submitted in SQL holds ACCESS SHARE there until it ends.

CREATE TABLE duetime.identity (
    single  boolean PRIMARY KEY DEFAULT true CHECK (single),
    id      uuid NOT NULL
);
INSERT INTO duetime.identity (id) VALUES (gen_random_uuid());
