# A consumer with a database of its own.
psql -q "$DATABASE_URLS" <<'SQL'
CREATE TABLE done (task_id uuid PRIMARY KEY);
CREATE TABLE account (id bigint PRIMARY KEY, balance bigint NOT NULL);
INSERT INTO account (id, balance) VALUES (7, 100);
SQL
